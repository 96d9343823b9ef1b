"""Authorization: what a client may do with a topic."""

from __future__ import annotations

from enum import Enum

from attrs import field, frozen
from attrs.converters import optional

from kinmqtt_spi.values import Client, Decision


class Action(Enum):
    """The action to authorize. RECEIVE is authorized for each delivery, if a plugin implements it."""

    PUBLISH = "publish"
    """To publish to the topic."""
    SUBSCRIBE = "subscribe"
    """To subscribe to the filter."""
    RECEIVE = "receive"
    """To receive a message of the topic."""
    WILL = "will"
    """To leave a will with the topic."""


@frozen(slots=True)
class AuthorizationRequest:
    """One question: may this client do this with this topic?"""

    client: Client
    """The client."""
    action: Action
    """The action."""
    topic: str
    """The topic name, or for SUBSCRIBE the filter (without ``$share/group/``)."""
    qos: int = 0
    """The QoS of the message, or the maximum QoS of the subscription."""
    retain: bool = False
    """Whether the message is to be retained."""
    share_group: str | None = None
    """For SUBSCRIBE: the group of a shared subscription."""


class Cache(Enum):
    """How long an authorizer's answer may be reused."""

    NEVER = "never"
    """Ask again each time."""
    SESSION = "session"
    """Reuse for the same session, action and topic, until the connection ends or the plugin calls
    ``context.authorization_changed``. Answers of ``authorize_receive`` are not reused."""
    TOPIC = "topic"
    """As SESSION. An answer of ``authorize_receive`` is also reused, for all messages of the topic to this client,
    whatever their QoS and RETAIN."""


@frozen(slots=True)
class Authorization(Decision):
    """A decision with a lifetime. A plain ``Decision`` of ``authorize`` is valid for the session."""

    cache: Cache = Cache.SESSION
    """How long it may be reused."""
    expires_at: float | None = field(default=None, converter=optional(float))
    """The end of validity, in seconds since the epoch, UTC. An answer of ``authorize_receive`` with an end is not
    reused."""


@frozen(slots=True)
class Scope:
    """The clients whose cached answers are stale. The empty scope covers all clients."""

    client_id: str | None = None
    """Only this client; ``None`` for all."""
    username: str | None = None
    """Only this user; ``None`` for all."""

    def covers(self, client: Client) -> bool:
        """Tell whether ``client`` is within the scope."""
        return (self.client_id is None or self.client_id == client.client_id) and (
            self.username is None or self.username == client.username
        )


EVERYBODY = Scope()
