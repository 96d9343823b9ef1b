"""The core's bindings: every hook of the SPI has its place in the broker."""

from __future__ import annotations

from core_harness.house import House
from kinmqtt.hooks.registry import Hooks
from kinmqtt_spi.hookspecs import HOOKSPEC_MODULES


def test_the_core_binds_every_hook() -> None:
    """No hook is declared that the core does not know what to do with."""
    life = {"requirements", "settings_class", "configure", "limiter_needs", "guard_calls"}
    provided = {"subscription_index", "queue_store", "retain_store", "session_store", "event_log", "event_feed"}
    provided |= {"cluster_backend", "cluster_arbiter"}
    declared = {n for m in HOOKSPEC_MODULES for n, f in vars(m).items() if hasattr(f, "kinmqtt_traits")}

    hooks = House().broker.runtime.hooks
    bound = {name for name in vars(hooks) if not name.startswith("_")}

    assert isinstance(hooks, Hooks)
    assert declared == bound | life | provided
