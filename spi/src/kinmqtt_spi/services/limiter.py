"""Limiter: limits on the use of resources, after Sentinel's resources and rules."""

from __future__ import annotations

from enum import Enum
from typing import Final

from attrs import frozen

from kinmqtt_spi.reasons import ReasonCode


class ResourceKind(Enum):
    """The kind of resource that is used."""

    CONNECTION = "connection"
    """Accepted, before a byte is read; amount 1."""
    CONNECT = "connect"
    """A CONNECT packet; amount 1."""
    PUBLISH = "publish"
    """PUBLISH packets received. The amount is their number in one read, which may exceed any limit, or 1 if a rule
    needs the topic."""
    SUBSCRIBE = "subscribe"
    """The topic filters of a SUBSCRIBE packet."""


@frozen(slots=True)
class Resource:
    """A resource and its user. Fields that are unknown, or not requested, are ``None``."""

    kind: ResourceKind
    """The kind of resource."""
    listener: str
    """The name of the listener."""
    address: str
    """The peer's host."""
    client_id: str | None = None
    """``None`` for a CONNECTION. For a CONNECT the client id in the packet, before authentication."""
    username: str | None = None
    """As ``client_id``."""
    topic: str | None = None
    """The topic of a PUBLISH, only if a limiter's ``LimiterNeeds.topics`` requests it."""


class LimitVerdict(Enum):
    """What to do with the request."""

    ALLOW = "allow"
    """Allow it."""
    DELAY = "delay"
    """Allow it, then read nothing from this client for ``delay_s`` seconds."""
    DROP = "drop"
    """Drop it. QoS 1 and 2 are acknowledged as usual."""
    REJECT = "reject"
    """Refuse it with ``reason``. MQTT 3 has no packet to refuse a PUBLISH, so it is acknowledged and logged."""
    DISCONNECT = "disconnect"
    """Close the connection with ``reason``."""


@frozen(slots=True)
class LimitDecision:
    """A limiter's answer."""

    verdict: LimitVerdict
    """What to do with the request."""
    rule: str = ""
    """The rule that decided, for metrics and logs; empty for ALLOW."""
    delay_s: float = 0.0
    """For DELAY: how long nothing is read from the client."""
    reason: ReasonCode = ReasonCode.QUOTA_EXCEEDED
    """For REJECT and DISCONNECT. If the packet can't carry it, the nearest reason code is sent."""


WITHIN_LIMITS: Final = LimitDecision(LimitVerdict.ALLOW)


@frozen(slots=True)
class LimiterNeeds:
    """The calls that a limiter needs, so that no others are made."""

    kinds: frozenset[ResourceKind] = frozenset(ResourceKind)
    """The kinds that the plugin limits. It is also asked about kinds of other limiters, and must abstain there."""
    topics: bool = False
    """Whether ``acquire`` is called for each PUBLISH with its topic, rather than once for each read."""
    releases: frozenset[ResourceKind] = frozenset()
    """The kinds for which ``release`` is called: those with a limit on concurrency."""
