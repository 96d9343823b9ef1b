"""Markers to declare and implement hooks: pluggy's markers, plus the kind that determines how answers combine.

pluggy finds implementations and checks their arguments. The core's dispatchers combine the answers by the kind
declared here. pluggy alone can't: with ``firstresult`` a coroutine that will abstain still wins, one raising
implementation hides the others, and the call order is the reverse of discovery.
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
"""The default time limit of a notice. A plugin's later notices wait for it."""

_spec_marker: Final = pluggy.HookspecMarker(PROJECT)

hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a function or method as the implementation of the hook of the same name."""


class Kind(Enum):
    """How the answers of several implementations combine."""

    PROVIDE = "provide"
    DECIDE = "decide"
    INTERCEPT = "intercept"
    COLLECT = "collect"
    NOTIFY = "notify"


class OnFailure(Enum):
    """What happens to the value if an intercept raises or is late."""

    REJECT = "reject"
    PASS = "pass"


@frozen(slots=True)
class HookTraits:
    """Properties of a hook beyond its signature."""

    kind: Kind
    synchronous: bool = False
    """Whether an awaitable answer is an error, because the hook is on a path that can't wait."""
    time_limit_s: float | None = None
    """The time limit of an awaitable answer; a late one counts as a failure."""
    on_failure: OnFailure = OnFailure.REJECT
    by_topic: bool = False
    """Implementations may be limited to topic filters with :func:`on_topics`."""
    folds: str = ""
    """For an intercept, the parameter that each answer may replace for the next implementation."""
    fails_open: bool = False
    """Whether a failure counts as consent, unless the implementation is marked with :func:`fails_closed`."""


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

    The filters are compared once for each topic, not once for each message, so other topics cost nothing. Put the
    marker below ``@hookimpl``::

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
    """Make an implementation's failures refuse the request, for a hook that fails open.

    A failure is an exception or an answer of a wrong type. The hook's page says what is refused, and how. Put the
    marker below ``@hookimpl``::

        @hookimpl
        @fails_closed
        def delivering(client, message): ...
    """
    function.kinmqtt_fails_closed = True  # type: ignore[attr-defined]
    return function


def is_closed(function: Callable[..., Any]) -> bool:
    """Tell whether an implementation is marked with :func:`fails_closed`."""
    return bool(getattr(function, "kinmqtt_fails_closed", False))


def topics_of(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the filters given with :func:`on_topics`, or ``None`` for all topics."""
    filters: tuple[str, ...] | None = getattr(function, "kinmqtt_topics", None)
    return filters


def traits_of(spec: Callable[..., Any]) -> HookTraits:
    """Return the traits that a hook was declared with."""
    traits: HookTraits = spec.kinmqtt_traits  # type: ignore[attr-defined]
    return traits
