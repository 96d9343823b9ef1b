"""Authorization: what a client may do with which topic."""

from __future__ import annotations

from enum import Enum

from attrs import field, frozen
from attrs.converters import optional

from kinmqtt_spi.values import Client, Decision


class Action(Enum):
    """What is asked for. RECEIVE is asked for each delivery, and only where a plugin implements it."""

    PUBLISH = "publish"
    """To publish to the topic."""
    SUBSCRIBE = "subscribe"
    """To subscribe to the filter."""
    RECEIVE = "receive"
    """To be sent a message of the topic."""
    WILL = "will"
    """To leave a will that is to be published there."""


@frozen(slots=True)
class AuthorizationRequest:
    """One question: may this client do this with this topic?"""

    client: Client
    """Who asks."""
    action: Action
    """What it wants to do."""
    topic: str
    """The topic name, or for SUBSCRIBE the filter (without ``$share/group/``)."""
    qos: int = 0
    """Of the message, or the highest that the subscription asks for."""
    retain: bool = False
    """Whether the message is to be retained."""
    share_group: str | None = None
    """Of SUBSCRIBE: the group of a shared subscription."""


class Cache(Enum):
    """How long an answer of an authorizer may be reused."""

    NEVER = "never"
    """Ask again each time."""
    SESSION = "session"
    """For the same session, action and topic, until the connection ends or the plugin calls
    ``context.authorization_changed``. Of ``authorize_receive`` it is not reused."""
    TOPIC = "topic"
    """As SESSION; and of ``authorize_receive``, for all messages of the topic to this client, whatever their QoS and
    RETAIN."""


@frozen(slots=True)
class Authorization(Decision):
    """A decision that says how long it holds; a plain ``Decision`` of ``authorize`` holds for the session."""

    cache: Cache = Cache.SESSION
    """How long it may be reused."""
    expires_at: float | None = field(default=None, converter=optional(float))
    """Seconds since the epoch, UTC, until which an answer of ``authorize`` holds at the longest; one of
    ``authorize_receive`` with an end is not reused."""


@frozen(slots=True)
class Scope:
    """Whose cached answers became stale; the empty scope is everybody's."""

    client_id: str | None = None
    """Of this client alone; ``None`` for all."""
    username: str | None = None
    """Of this user alone; ``None`` for all."""

    def covers(self, client: Client) -> bool:
        """Whether ``client`` falls within the scope."""
        return (self.client_id is None or self.client_id == client.client_id) and (
            self.username is None or self.username == client.username
        )


EVERYBODY = Scope()
