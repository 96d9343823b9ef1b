"""How hooks are declared and implemented: pluggy's markers, plus the kind that says how answers combine.

pluggy finds implementations and checks their arguments. The core's dispatchers combine the answers, by the
kind declared here, because pluggy alone can't: with ``firstresult`` a coroutine that will abstain still wins,
one raising implementation silences the others, and call order is that of discovery, backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeVar

import pluggy
from attrs import frozen

F = TypeVar("F", bound=Callable[..., Any])

PROJECT: Final = "kinmqtt"
ENTRY_POINT_GROUP: Final = "kinmqtt.plugins"

NOTICE_LIMIT_S: Final = 30.0
"""How long a notice may be awaited where the settings say nothing else: a plugin's later notices wait for it."""

_spec_marker: Final = pluggy.HookspecMarker(PROJECT)

hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a function or method as the implementation of the hook of the same name."""


class Kind(Enum):
    """How the answers of several implementations become one (architecture: "Services and hooks")."""

    PROVIDE = "provide"
    DECIDE = "decide"
    INTERCEPT = "intercept"
    COLLECT = "collect"
    NOTIFY = "notify"


class OnFailure(Enum):
    """What a raising or late intercept does to the value in its hands."""

    REJECT = "reject"
    PASS = "pass"


@frozen(slots=True)
class HookTraits:
    """What the core needs to know of a hook beyond its signature."""

    kind: Kind
    synchronous: bool = False
    """An awaitable answer is an error: the hook stands on a path that can't wait."""
    time_limit_s: float | None = None
    """How long an awaitable answer may take; a late one counts as a failure."""
    on_failure: OnFailure = OnFailure.REJECT
    by_topic: bool = False
    """Implementations may be limited to topic filters with :func:`on_topics`."""
    folds: str = ""
    """For an intercept, the parameter that each answer may replace before the next implementation sees it."""
    fails_open: bool = False
    """A failure lets through what was asked about, unless the implementation is marked with :func:`fails_closed`."""


def hookspec(
    kind: Kind,
    *,
    synchronous: bool = False,
    time_limit_s: float | None = None,
    on_failure: OnFailure = OnFailure.REJECT,
    by_topic: bool = False,
    folds: str = "",
    fails_open: bool = False,
) -> Callable[[F], F]:
    """Declare a hook of the given kind; the arguments are those of :class:`HookTraits`."""
    if kind is Kind.NOTIFY and time_limit_s is None:
        time_limit_s = NOTICE_LIMIT_S
    traits = HookTraits(kind, synchronous, time_limit_s, on_failure, by_topic, folds, fails_open)

    def mark(function: F) -> F:
        function.kinmqtt_traits = traits  # type: ignore[attr-defined]
        return _spec_marker(function)

    return mark


def on_topics(*filters: str) -> Callable[[F], F]:
    """Limit an implementation to messages whose topic matches one of ``filters``.

    The filters are looked at once for each topic, not once for each message: other topics pay nothing.
    Put it below ``@hookimpl``::

        @hookimpl
        @on_topics("sensors/#")
        def publish_received(client, message): ...
    """
    if not filters:
        raise TypeError("on_topics needs at least one topic filter")

    def mark(function: F) -> F:
        function.kinmqtt_topics = filters  # type: ignore[attr-defined]
        return function

    return mark


def fails_closed(function: F) -> F:
    """Have an implementation's failure refuse what it was asked about, of a hook whose failures let it through.

    A failure is an exception or an answer of a wrong type. The hook's page says what is refused, and how. Put it
    below ``@hookimpl``::

        @hookimpl
        @fails_closed
        def delivering(client, message): ...
    """
    function.kinmqtt_fails_closed = True  # type: ignore[attr-defined]
    return function


def is_closed(function: Callable[..., Any]) -> bool:
    """Whether an implementation is marked with :func:`fails_closed`."""
    return bool(getattr(function, "kinmqtt_fails_closed", False))


def topics_of(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """The filters given with :func:`on_topics`, or ``None`` for all topics."""
    filters: tuple[str, ...] | None = getattr(function, "kinmqtt_topics", None)
    return filters


def traits_of(spec: Callable[..., Any]) -> HookTraits:
    """The traits a hook was declared with."""
    traits: HookTraits = spec.kinmqtt_traits  # type: ignore[attr-defined]
    return traits
