"""Numbered behaviours of contract suites. The number of a behaviour stays if its wording changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, TypeVar

import pytest
from attrs import frozen

F = TypeVar("F", bound=Callable[..., Any])

_NUMBER: Final = re.compile(r"[A-Z]+-\d{2}")


@frozen(slots=True)
class Behaviour:
    """One behaviour that a family's contract requires."""

    number: str
    """The family and a number of its own, as ``SESSION-03``; never given to another promise."""
    promise: str
    """One sentence."""
    needs: str | None = None
    """The capability flag of the suite that must be set for the promise to be asked for."""


def behaviour(number: str, *, needs: str | None = None) -> Callable[[F], F]:
    """Mark a suite's test as that of one behaviour; its docstring describes the behaviour.

    The test's name begins with the number, and a failure shows the number and the description. If the suite's flag
    ``needs`` is ``False``, the test is skipped, and the skip says so.
    """

    def mark(test: F) -> F:
        promise = _promise(test)
        _check(number, test)

        @wraps(test)
        def kept(suite: Any, *arguments: Any, **fixtures: Any) -> Any:
            __tracebackhide__ = True
            if needs is not None and not getattr(suite, needs):
                pytest.skip(f"{number} is skipped: {type(suite).__name__}.{needs} is False ({promise})")
            try:
                return test(suite, *arguments, **fixtures)
            except pytest.skip.Exception:
                raise
            except BaseException as error:
                error.add_note(f"{number}: {promise}")
                raise

        kept.kinmqtt_behaviour = Behaviour(number, promise, needs)  # type: ignore[attr-defined]
        return kept  # type: ignore[return-value]

    return mark


def behaviours_of(suite: type[Any]) -> Iterator[Behaviour]:
    """Return the behaviours of a suite, in the order of their numbers; raises ``ValueError`` for a duplicate."""
    found: dict[str, Behaviour] = {}
    for name in dir(suite):
        its: Behaviour | None = getattr(getattr(suite, name), "kinmqtt_behaviour", None)
        if its is not None:
            if its.number in found:
                raise ValueError(f"{suite.__name__} gives the number {its.number} to two behaviours")
            found[its.number] = its
    yield from (found[number] for number in sorted(found))


def _promise(test: Callable[..., Any]) -> str:
    if not test.__doc__:
        raise TypeError(f"{test.__qualname__} has no docstring that describes the behaviour")
    return " ".join(test.__doc__.split())


def _check(number: str, test: Callable[..., Any]) -> None:
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"{number!r} is not the number of a behaviour: write FAMILY-NN")
    start = f"test_{number.lower().replace('-', '_')}_"
    if not test.__name__.startswith(start):
        raise ValueError(f"{test.__qualname__} is the test of {number}: its name must begin with {start}")
