"""How hooks are declared and implemented."""

from __future__ import annotations

import pluggy
import pytest

from kinmqtt_spi.hookspecs import HOOKSPEC_MODULES
from kinmqtt_spi.markers import (
    PROJECT,
    HookTraits,
    Kind,
    OnFailure,
    fails_closed,
    hookimpl,
    hookspec,
    is_closed,
    on_topics,
    topics_of,
    traits_of,
)


def test_a_spec_keeps_its_traits_and_is_pluggys_too() -> None:
    """What the dispatchers need to know is found on the declared function, which pluggy recognises."""

    class Specs:
        @hookspec(Kind.INTERCEPT, time_limit_s=2.0, on_failure=OnFailure.PASS, by_topic=True)
        def changing(self, message: object) -> None:
            """A hook of this test."""

    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Specs)

    assert traits_of(Specs.changing) == HookTraits(Kind.INTERCEPT, False, 2.0, OnFailure.PASS, True)
    assert manager.hook.changing.spec is not None


def test_an_implementation_is_found_by_its_mark() -> None:
    """A marked function of a plugin is called through the hook of its name; an unmarked one is not."""

    class Plugin:
        @hookimpl
        def authorize(self) -> str:
            return "asked"

        def authenticate(self) -> str:
            raise AssertionError

    manager = pluggy.PluginManager(PROJECT)
    for module in HOOKSPEC_MODULES:
        manager.add_hookspecs(module)
    manager.register(Plugin())
    manager.check_pending()

    assert manager.hook.authorize(request=None) == ["asked"]
    assert manager.hook.authenticate(request=None) == []


def test_topics_are_kept_with_the_implementation() -> None:
    """An implementation limited to filters says which; one without limit says so."""

    @hookimpl
    @on_topics("a/#", "b")
    def published(message: object) -> None:
        raise AssertionError

    def everything(message: object) -> None:
        raise AssertionError

    assert (topics_of(published), topics_of(everything)) == (("a/#", "b"), None)


def test_a_limit_to_no_topics_is_a_mistake() -> None:
    """An implementation that could never be called is refused where it is written."""
    with pytest.raises(TypeError, match="at least one"):
        on_topics()


def test_an_implementation_that_fails_closed_says_so() -> None:
    """The mark stays with the function, whatever else it is marked with."""

    @hookimpl
    @fails_closed
    @on_topics("a/#")
    def delivering(message: object) -> None:
        raise AssertionError

    def openly(message: object) -> None:
        raise AssertionError

    assert (is_closed(delivering), is_closed(openly)) == (True, False)
    assert topics_of(delivering) == ("a/#",)


def test_every_hook_that_fails_open_says_so() -> None:
    """In its docstring, with what a mark makes of it; and no other hook says it."""
    for module in HOOKSPEC_MODULES:
        for name, spec in vars(module).items():
            if hasattr(spec, "kinmqtt_traits") and name != "guard_calls":  # A guard's failure is not its hook's.
                says = "fails open: " in (spec.__doc__ or "") and "``fails_closed``" in (spec.__doc__ or "")
                assert says is traits_of(spec).fails_open, name
