"""Session store: the owner of each client id, and persistent sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.services.session import SessionStore
    from kinmqtt_spi.values import Address, Client


@hookspec(Kind.PROVIDE, synchronous=True)
def session_store(context: Context) -> SessionStore:  # type: ignore[empty-body]
    """The broker's session store.

    Called: once at assembly, after ``configure``.
    Combines: exclusive: the plugin the settings name, else the only one installed, else `embedded`, or
        `memory` with `--data memory`.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.NOTIFY)
def session_created(client: Client) -> None:
    """A client began a new session.

    Called: at connect, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def session_resumed(client: Client) -> None:
    """A client resumed its session.

    Called: at connect, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def session_taken_over(client: Client, old_address: Address) -> None:
    """A new connection has taken a client id from an open one.

    Called: when the old connection is closed, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def session_expired(client_id: str) -> None:
    """A session has expired.

    Called: when the session is discarded, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """


@hookspec(Kind.NOTIFY)
def session_discarded(client_id: str) -> None:
    """A session ended with its connection, or by a clean start.

    Called: when the session is discarded, in a later reactor turn.
    Combines: every implementation is notified, in order per client.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited, the next notice to this plugin then waits.
    """
