"""A plugin's own life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinmqtt_spi.services.plugin import CallGuard, Context, Health, Requirements
    from kinmqtt_spi.values import Maybe


@hookspec(Kind.COLLECT, synchronous=True)
def requirements() -> Requirements:  # type: ignore[empty-body]
    """What the plugin needs of the broker it is installed in.

    Called: at assembly, before anything is parsed or started.
    Combines: each plugin's answer is checked by itself; the first that can't hold stops the assembly.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.COLLECT, synchronous=True)
def settings_class() -> type[Any]:  # type: ignore[empty-body]
    """The attrs class that the plugin's settings section is parsed into.

    Called: at assembly, before ``configure``.
    Combines: each plugin's section is parsed into its own class; a plugin without the hook takes no settings.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.COLLECT, synchronous=True)
def configure(context: Context) -> None:
    """Take the context with the parsed settings; raise ``NotConfigured`` to abstain from everything.

    Called: at assembly, once, before any service is asked for.
    Combines: every plugin is configured by itself, in the order of the settings.
    If it raises: ``NotConfigured`` deactivates a plugin the settings do not name; anything else, or a named plugin,
    stops the assembly.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.COLLECT, time_limit_s=60.0)
def start(context: Context) -> Maybe[None]:
    """Open what the plugin needs: files, connections, timers.

    Called: after assembly, before listeners open.
    Combines: one plugin after the other, in the order of the settings.
    If it raises: the broker does not start and names the plugin; those already started are stopped.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, time_limit_s=60.0)
def ready() -> Maybe[None]:
    """The listeners are open.

    Called: once, right after the last listener opened.
    Combines: every plugin is told.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, time_limit_s=60.0)
def reload(settings: Any) -> Maybe[Sequence[str]]:  # type: ignore[empty-body]
    """Take new settings without a restart; answers one sentence for each thing that could not change.

    Called: when the operator asks for a reload, after the whole new file was found to be sound.
    Combines: the answers are shown, under each plugin's name.
    If it raises: the plugin must go on with its old settings; the error is shown to the operator.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, time_limit_s=60.0)
def drain(deadline_s: float) -> Maybe[None]:
    """The broker stops: finish what can be finished within the deadline.

    Called: when the listeners are closed and the clients are gone, before ``stop``.
    Combines: all plugins at once.
    If it raises: logged and counted; the stop goes on.
    Threading: reactor thread; may be awaited, until the deadline.
    """


@hookspec(Kind.COLLECT, time_limit_s=60.0)
def stop() -> Maybe[None]:
    """Close everything that ``start`` opened.

    Called: last, for every plugin whose ``start`` was called or that has none, also when a later plugin failed to
    start. Before it the plugin was told everything that it was to be told, where that took it no longer than 10 s.
    Combines: one plugin after the other, in the reverse order of the settings.
    If it raises: logged and counted; the others are stopped all the same.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, time_limit_s=5.0)
def health() -> Maybe[Health]:  # type: ignore[empty-body]
    """How well the plugin does.

    Called: when somebody asks for the broker's health.
    Combines: all answers are shown by plugin; the worst is the broker's.
    If it raises: the plugin counts as FAILED.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, synchronous=True)
def guard_calls(plugin: str, hook: str) -> CallGuard | None:
    """What stands before another plugin's calls of a hook that clients wait for; ``None`` for nothing.

    Called: once at assembly, after ``configure``, for each implementation of a decide or intercept hook that may be
    awaited. A plugin does not guard itself.
    Combines: all guards are asked, in the order of the settings; the first that lets no call in is the last asked.
    If it raises: the broker does not start and names the plugin; a guard that raises fails open: it lets the call in,
    and is logged and counted.
    Threading: reactor thread, synchronous; so are the guard's methods.
    """
