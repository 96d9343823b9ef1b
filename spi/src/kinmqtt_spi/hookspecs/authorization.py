"""Authorization: what a client may do with which topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.services.authorization import AuthorizationRequest
    from kinmqtt_spi.values import Decision, Maybe


@hookspec(Kind.DECIDE, time_limit_s=10.0)
def authorize(request: AuthorizationRequest) -> Maybe[Decision | None]:
    """Decide whether a client may publish to, subscribe to, or leave a will on a topic; ``None`` abstains.

    Called: for each filter of a SUBSCRIBE, the will of a CONNECT, and a PUBLISH, unless an answer for the topic is
    cached; and again when a will or a delayed message is due, whose client may have disconnected. Not called for
    topics that begin with ``$`` and are closed to clients.
    Combines: the first answer that does not abstain, in the order of the settings; else ALLOW.
    If it raises: counts as DENY with 0x87, and is not cached; so does no answer in time.
    Threading: reactor thread; may be awaited. The client's other packets wait.
    """


@hookspec(Kind.DECIDE, synchronous=True)
def authorize_receive(request: AuthorizationRequest) -> Decision | None:
    """Decide whether a client may receive a message of this topic; ``None`` abstains.

    Called: for each client a message is about to be queued or sent to, and again as it leaves a queue; for members of
    a shared subscription before one of them is chosen. If no other plugin implements the hook, an
    ``Authorization`` with ``Cache.TOPIC`` is reused until the client connects again or the plugin calls
    ``authorization_changed``: such deliveries cost nothing more.
    Combines: the first answer that does not abstain, in the order of the settings; else ALLOW.
    If it raises: counts as DENY: the message is dropped for this client.
    Threading: reactor thread, synchronous: answer from memory.
    """


@hookspec(Kind.NOTIFY)
def authorization_refused(request: AuthorizationRequest, by: str) -> None:
    """A client was refused; ``by`` names the plugin; it is empty if the broker itself refused.

    Called: for each refusal that was not answered from the cache, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
