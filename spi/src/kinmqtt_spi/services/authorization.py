"""Authorization: what a client may do with which topic."""

from __future__ import annotations

from enum import Enum

from attrs import field, frozen
from attrs.converters import optional

from kinmqtt_spi.values import Client, Decision


class Action(Enum):
    """What is asked for. RECEIVE is asked for each delivery, and only where a plugin implements it."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    RECEIVE = "receive"
    WILL = "will"


@frozen(slots=True)
class AuthorizationRequest:
    """One question: may this client do this with this topic?"""

    client: Client
    action: Action
    topic: str
    """The topic name, or for SUBSCRIBE the filter (without ``$share/group/``)."""
    qos: int = 0
    retain: bool = False
    share_group: str | None = None


class Cache(Enum):
    """How long an answer of an authorizer may be reused."""

    NEVER = "never"
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
    expires_at: float | None = field(default=None, converter=optional(float))
    """Seconds since the epoch, UTC, until which an answer of ``authorize`` holds at the longest; one of
    ``authorize_receive`` with an end is not reused."""


@frozen(slots=True)
class Scope:
    """Whose cached answers became stale; the empty scope is everybody's."""

    client_id: str | None = None
    username: str | None = None

    def covers(self, client: Client) -> bool:
        """Whether ``client`` falls within the scope."""
        return (self.client_id is None or self.client_id == client.client_id) and (
            self.username is None or self.username == client.username
        )


EVERYBODY = Scope()
