"""A plugin's life cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kinmqtt_spi.services.plugin import CallGuard, Context, Health, Requirements
    from kinmqtt_spi.values import Maybe


@hookspec(Kind.COLLECT, synchronous=True)
def requirements() -> Requirements:  # type: ignore[empty-body]
    """Return what the plugin needs of the broker.

    Called: at assembly, before anything is parsed or started.
    Combines: each plugin's answer is checked separately; the first that is not met stops the assembly.
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
    """Take the context with the parsed settings; raise ``NotConfigured`` to deactivate the plugin.

    Called: at assembly, once, before any service is asked for.
    Combines: each plugin is configured separately, in the order of the settings.
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
    Combines: every plugin is called.
    If it raises: logged and counted.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, time_limit_s=60.0)
def reload(settings: Any) -> Maybe[Sequence[str]]:  # type: ignore[empty-body]
    """Apply new settings without a restart; return one sentence for each setting that needs a restart.

    Called: when the operator asks for a reload, after the whole new file was checked.
    Combines: the answers are shown, under each plugin's name.
    If it raises: the plugin must go on with its old settings; the error is shown to the operator.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, time_limit_s=60.0)
def values_adopted(values: Mapping[str, bytes]) -> Maybe[None]:
    """Take the values that this plugin has persisted on another node, which is gone; they are this node's now.

    Called: when a node of the cluster is DOWN, where the nodes share a retain store; only if it left values.
    Combines: each plugin gets its own values, by key; a value goes to one node.
    If it raises: logged and counted; the values are this node's, and the next start finds them.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, time_limit_s=60.0)
def drain(deadline_s: float) -> Maybe[None]:
    """The broker stops: finish pending work within the deadline.

    Called: when the listeners and the connections are closed, before ``stop``.
    Combines: all plugins at once.
    If it raises: logged and counted; the stop goes on.
    Threading: reactor thread; may be awaited, until the deadline.
    """


@hookspec(Kind.COLLECT, time_limit_s=60.0)
def stop() -> Maybe[None]:
    """Close everything that ``start`` opened.

    Called: last, for every plugin whose ``start`` was called or that has none, also when a later plugin failed to
    start. All pending notices are delivered to the plugin before, for at most 10 s.
    Combines: one plugin after the other, in the reverse order of the settings.
    If it raises: logged and counted; the others are stopped anyway.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, time_limit_s=5.0)
def health() -> Maybe[Health]:  # type: ignore[empty-body]
    """Return the plugin's health.

    Called: when somebody asks for the broker's health.
    Combines: each plugin's answer is shown; the worst is the broker's health.
    If it raises: the plugin counts as FAILED.
    Threading: reactor thread; may be awaited.
    """


@hookspec(Kind.COLLECT, synchronous=True)
def guard_calls(plugin: str, hook: str) -> CallGuard | None:
    """Return a guard for another plugin's calls of a hook that clients wait for, or ``None``.

    Called: once at assembly, after ``configure``, for each implementation of a decide or intercept hook that may be
    awaited. A plugin does not guard itself.
    Combines: the guards are asked in the order of the settings, up to the first that rejects the call.
    If it raises: the broker does not start and names the plugin; a guard that raises fails open: the call is made,
    and the failure is logged and counted.
    Threading: reactor thread, synchronous; so are the guard's methods.
    """
