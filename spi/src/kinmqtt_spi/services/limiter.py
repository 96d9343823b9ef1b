"""Limiter: how much of what, after Sentinel's resources and rules."""

from __future__ import annotations

from enum import Enum
from typing import Final

from attrs import frozen

from kinmqtt_spi.reasons import ReasonCode


class ResourceKind(Enum):
    """What is being used."""

    CONNECTION = "connection"
    """Accepted, before a byte is read; amount 1."""
    CONNECT = "connect"
    """A CONNECT packet; amount 1."""
    PUBLISH = "publish"
    """PUBLISH packets received; the amount is their number in one read, which may be more than any limit allows, or 1
    where a rule needs the topic."""
    SUBSCRIBE = "subscribe"
    """The topic filters of a SUBSCRIBE packet."""


@frozen(slots=True)
class Resource:
    """What is used, and by whom. Fields that are not known yet, or not asked for, are ``None``."""

    kind: ResourceKind
    """What is used."""
    listener: str
    """The name of the listener."""
    address: str
    """The peer's host."""
    client_id: str | None = None
    """Not known of a CONNECTION; of a CONNECT what it says of itself, which nobody has checked yet."""
    username: str | None = None
    """As ``client_id``."""
    topic: str | None = None
    """Of a PUBLISH, and only where a limiter's ``LimiterNeeds.topics`` asks for it."""


class LimitVerdict(Enum):
    """What to do with the request."""

    ALLOW = "allow"
    """Go on."""
    DELAY = "delay"
    """Carry out, then read nothing more from this client for ``delay_s`` seconds."""
    DROP = "drop"
    """Forget it; QoS 1 and 2 are answered as if all were well."""
    REJECT = "reject"
    """Refuse with ``reason``: MQTT 3 publishers, whom no packet can tell, get an acknowledgement and a log line."""
    DISCONNECT = "disconnect"
    """Close the connection with ``reason``."""


@frozen(slots=True)
class LimitDecision:
    """A limiter's answer; ``rule`` names the rule that spoke, for metrics and logs."""

    verdict: LimitVerdict
    """What is to become of the request."""
    rule: str = ""
    """The rule that spoke; empty for ALLOW."""
    delay_s: float = 0.0
    """For DELAY: how long nothing more is read."""
    reason: ReasonCode = ReasonCode.QUOTA_EXCEEDED
    """For REJECT and DISCONNECT; where the packet can't carry it, the nearest that it can."""


WITHIN_LIMITS: Final = LimitDecision(LimitVerdict.ALLOW)


@frozen(slots=True)
class LimiterNeeds:
    """What a limiter wants to be asked, so that what it does not look at costs nothing."""

    kinds: frozenset[ResourceKind] = frozenset(ResourceKind)
    """What the plugin wants to be asked about. It is asked of what other limiters want, too, and abstains there."""
    topics: bool = False
    """Whether PUBLISH is asked for each packet with its topic, rather than once a read for all it holds."""
    releases: frozenset[ResourceKind] = frozenset()
    """Of which of the kinds the plugin's ``release`` wants to hear: what is limited by how much there is at once."""
