"""Authentication: who a client is, and whether it is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.reasons import ReasonCode
    from kinmqtt_spi.services.authentication import ConnectRequest, Continue, ExchangeStep, Redirect
    from kinmqtt_spi.values import Address, Client, Decision, Maybe, Outcome


@hookspec(Kind.DECIDE, synchronous=True)
def connection_opened(address: Address, listener: str) -> Decision | None:
    """Decide whether to accept a connection from this address; ``None`` abstains.

    Called: for each accepted connection, before a byte is read.
    Combines: the first answer that does not abstain, in the order of the settings; else ALLOW.
    If it raises: counts as DENY: the connection is closed.
    Threading: reactor thread, synchronous: answer from memory.
    """


@hookspec(Kind.DECIDE, time_limit_s=10.0)
def authenticate(request: ConnectRequest) -> Maybe[Decision | None]:
    """Decide whether to accept the client, and as whom; ``None`` abstains, ``allow_as`` names an identity.

    ALLOW states that the user name of the request was verified: the client gets the rights of that user. A plugin
    that has not verified it answers ``ALLOW_ANONYMOUS``.

    Called: for each CONNECT packet that names no authentication method.
    Combines: the first answer that does not abstain, in the order of the settings; else DENY with 0x87.
    If it raises: counts as DENY with 0x88, so that a broken guard accepts nobody; so does no answer in time.
    Threading: reactor thread; may be awaited. The client's other packets wait. If the client disconnects meanwhile,
    the awaited call is cancelled.
    """


@hookspec(Kind.DECIDE, time_limit_s=10.0)
def exchange(step: ExchangeStep) -> Maybe[Decision | Continue | None]:
    """One step of enhanced authentication; ``None`` abstains from methods that are not the plugin's.

    ``allow_as`` names the user. The user name of CONNECT is ignored here, unless it comes from a certificate.

    Called: for each CONNECT that names an authentication method, and for each AUTH packet after it.
    Combines: the first answer that does not abstain, in the order of the settings; else DENY with 0x8C.
    If it raises: counts as DENY with 0x88; so does no answer in time.
    Threading: reactor thread; may be awaited. The client's other packets wait. If the client disconnects meanwhile,
    the awaited call is cancelled.
    """


@hookspec(Kind.INTERCEPT, time_limit_s=10.0, folds="redirect")
def choose_server(client: Client, redirect: Redirect | None) -> Maybe[Outcome[Redirect]]:
    """Send an authenticated client to another server, or refuse it here.

    Called: after authentication, before the session is claimed; ``redirect`` is what earlier plugins answered.
    Combines: a fold in the order of the settings.
    If it raises: the client is refused with 0x88.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.NOTIFY)
def authenticated(client: Client) -> None:
    """A client has been accepted.

    Called: after authentication succeeded, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def authentication_refused(request: ConnectRequest, by: str, reason: ReasonCode) -> None:
    """A client has been refused; ``by`` names the plugin; it is empty if no plugin answered for the client.

    Called: after the refusal was sent, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
