"""Faults in the calls of a service: slow, failing, half-done and repeated ones, when a test says so.

``faulty(store, SessionStore, faults)`` is the store with ``faults`` in front of it: hand it to whatever uses the
store, and say what is to go wrong::

    faults.fail()                     # the next call is not made, and fails
    faults.fail(done=True)            # the next call is made, and its answer is lost
    faults.halve()                    # of the next batch one half is done, and the call fails
    faults.repeat()                   # the next call is made twice
    faults.hold(); ...; faults.go()   # calls answer when they are let go, in their order
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeVar, cast

from kinmqtt_spi.errors import ServiceUnavailable

S = TypeVar("S")

_BATCHES: Final = frozenset({"apply", "put", "append"})
"""Methods that take a batch as their first argument."""

_Fault = Callable[[Callable[..., Any], str, tuple[Any, ...], dict[str, Any]], Any]


class Held(Awaitable[Any]):
    """The answer of a call that was held: nothing until it is let go, then what the call answered."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._went = False
        self._answer: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether it was let go."""
        return self._went

    def go(self) -> None:
        """Make the call, and answer."""
        try:
            self._answer = self._call()
        except Exception as error:
            self._error = error
        self._went = True

    def __await__(self) -> Generator[Any, None, Any]:
        while not self._went:
            yield
        if self._error is not None:
            raise self._error
        if isinstance(self._answer, Awaitable):
            return (yield from self._answer.__await__())
        return self._answer


class Faults:
    """What is to go wrong, in order; a call for which nothing is said goes through."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """The names of the methods called, in order."""
        self._next: deque[_Fault] = deque()
        self._held: deque[Held] | None = None

    def fail(self, times: int = 1, error: Exception | None = None, *, done: bool = False) -> None:
        """Fail the next calls with ``error``, or ServiceUnavailable; ``done`` makes them, and loses the answer."""
        raised = ServiceUnavailable("a fault was injected") if error is None else error

        def fault(call: Callable[..., Any], name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
            if done:
                call(*arguments, **more)
            raise raised

        self._next.extend([fault] * times)

    def halve(self) -> None:
        """Do the first half of the next batch, then fail; a call without a batch is not made, and fails."""

        def fault(call: Callable[..., Any], name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
            if name in _BATCHES and arguments:
                batch, *others = arguments
                call(batch[: len(batch) // 2], *others, **more)
            raise ServiceUnavailable("a fault was injected: the batch was done by half")

        self._next.append(fault)

    def repeat(self) -> None:
        """Make the next call twice; what it answers is the second's answer."""

        def fault(call: Callable[..., Any], name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
            call(*arguments, **more)
            return call(*arguments, **more)

        self._next.append(fault)

    def hold(self) -> None:
        """From now on calls are made, and answer, when they are let go."""
        if self._held is None:
            self._held = deque()

    def go(self, calls: int | None = None) -> None:
        """Let the oldest calls go; without a number all, and those to come are not held any more."""
        held = self._held or deque()
        for _ in range(len(held) if calls is None else calls):
            held.popleft().go()
        if calls is None:
            self._held = None

    def through(self, name: str, call: Callable[..., Any], arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Make one call, with what is to go wrong."""
        self.calls.append(name)
        fault = self._next.popleft() if self._next else None

        def make() -> Any:
            return call(*arguments, **more) if fault is None else fault(call, name, arguments, more)

        if self._held is None:
            return make()
        held = Held(make)
        self._held.append(held)
        return held


def faulty(service: S, interface: type[S], faults: Faults, *methods: str) -> S:
    """The service with faults in front of ``methods``, or of all the interface's that may be waited for.

    What must answer without waiting (``count``, ``sizes`` and their like) is never held, and goes through as it is
    unless it is named. Raises ``ValueError`` for a method that the interface does not have.
    """
    waited_for = {name for name in _abstract(interface) if name not in _AT_ONCE}
    unknown = set(methods) - set(_abstract(interface)) - {"commit", "release"}
    if unknown:
        raise ValueError(f"{interface.__name__} has no method {', '.join(sorted(unknown))}")
    concerned = set(methods) or waited_for

    def method(name: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            made = getattr(service, name)
            return faults.through(name, made, arguments, more) if name in concerned else made(*arguments, **more)

        return call

    names = {name for name in dir(interface) if not name.startswith("_") and callable(getattr(interface, name))}
    body: dict[str, Any] = {name: method(name) for name in names}
    body["__getattr__"] = lambda self, name: getattr(service, name)
    if hasattr(interface, "transaction"):
        body["transaction"] = property(lambda self: service.transaction)  # type: ignore[attr-defined]
    if hasattr(interface, "generation"):
        body["generation"] = property(lambda self: service.generation)  # type: ignore[attr-defined]
    if hasattr(interface, "guarantees"):
        body["guarantees"] = property(lambda self: service.guarantees)  # type: ignore[attr-defined]
    return cast(S, type(f"Faulty{interface.__name__}", (interface,), body)())


_AT_ONCE: Final = frozenset({"count", "sizes", "totals", "size_bytes", "filters", "members", "link", "consume"})


def _abstract(interface: type[Any]) -> frozenset[str]:
    found: frozenset[str] = getattr(interface, "__abstractmethods__", frozenset())
    return found
