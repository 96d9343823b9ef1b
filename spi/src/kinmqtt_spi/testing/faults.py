"""Fault injection for services: slow, failing, half-done and repeated calls, as a test requests.

``faulty(store, SessionStore, faults)`` is the store with ``faults`` in front of it. Pass it to the code under test,
and set the faults::

    faults.fail()                     # the next call is not made, and fails
    faults.fail(done=True)            # the next call is made, and its answer is lost
    faults.halve()                    # half of the next batch is done, and the call fails
    faults.repeat()                   # the next call is made twice
    faults.hold(); ...; faults.go()   # calls answer when they are released, in order

Twisted code needs Deferreds to wait for held calls: see :class:`Faults`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias, TypeVar, cast

from kinmqtt_spi.errors import ServiceUnavailable

S = TypeVar("S")

_BATCHES: Final = frozenset({"apply", "put", "append"})
"""Methods that take a batch as their first argument."""

Wait: TypeAlias = Callable[[], tuple[Awaitable[Any], Callable[[], object]]]
"""Makes something to wait for, and the call that ends the wait."""

_Fault = Callable[[Callable[..., Any], str, tuple[Any, ...], dict[str, Any]], Any]


class Held(Awaitable[Any]):
    """The answer of a held call: pending until it is released, then the call's answer."""

    def __init__(self, call: Callable[[], Any], wait: Wait | None = None) -> None:
        self._call = call
        self._went = False
        self._answer: Any = None
        self._error: BaseException | None = None
        self._gate: Awaitable[Any] | None = None
        self._open: Callable[[], object] = _nothing
        if wait is not None:
            self._gate, self._open = wait()

    def done(self) -> bool:
        """Tell whether the call was released."""
        return self._went

    def go(self) -> None:
        """Make the call, and answer."""
        try:
            self._answer = self._call()
        except Exception as error:
            self._error = error
        self._went = True
        self._open()

    def __await__(self) -> Generator[Any, None, Any]:
        if self._gate is not None:
            yield from self._gate.__await__()
        while not self._went:
            yield
        if self._error is not None:
            raise self._error
        if isinstance(self._answer, Awaitable):
            return (yield from self._answer.__await__())
        return self._answer


class Faults:
    """The faults of the next calls, in order; a call without a fault is made as usual."""

    def __init__(self, wait: Wait | None = None) -> None:
        """``wait`` makes the awaitable of a held call, and a call that ends the wait.

        It is not needed with asyncio or a driver of the kit. A Twisted program can wait only for Deferreds::
        """
        self.calls: list[str] = []
        """The names of the methods called, in order."""
        self._next: deque[_Fault] = deque()
        self._held: deque[Held] | None = None
        self._wait = wait

    def fail(self, times: int = 1, error: Exception | None = None, *, done: bool = False) -> None:
        """Fail the next calls with ``error``, or ServiceUnavailable; with ``done`` they are made all the same."""
        raised = ServiceUnavailable("a fault was injected") if error is None else error

        def fault(call: Callable[..., Any], name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
            return _failed(call(*arguments, **more) if done else None, raised)

        self._next.extend([fault] * times)

    def halve(self) -> None:
        """Do the first half of the next batch, then fail; a call without a batch is not made, and fails."""

        def fault(call: Callable[..., Any], name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
            answer = None
            if name in _BATCHES:
                # Whoever names the batch hands it over first, too.
                batch, *others = arguments or more.values()
                half = batch[: len(batch) // 2]
                if half:
                    answer = call(half, *others, **(more if arguments else {}))
            return _failed(answer, ServiceUnavailable("a fault was injected: the batch was done by half"))

        self._next.append(fault)

    def repeat(self) -> None:
        """Make the next call twice; its answer is that of the second, whatever the result of the first."""

        def fault(call: Callable[..., Any], name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
            first = None
            with suppress(Exception):
                first = call(*arguments, **more)
            second = call(*arguments, **more)
            return _both(first, second) if isinstance(first, Awaitable) else second

        self._next.append(fault)

    def hold(self) -> None:
        """From now on calls are made, and answer, when they are released."""
        if self._held is None:
            self._held = deque()

    def go(self, calls: int | None = None) -> None:
        """Release the oldest calls; without a number release all, and hold no further ones.

        Raises ``ValueError`` if fewer are held.
        """
        held = deque() if self._held is None else self._held
        if calls is None:
            while held:  # Whoever is answered may make other calls, which come behind.
                held.popleft().go()
            self._held = None
            return
        if calls > len(held):
            raise ValueError(f"{calls} calls can't be released: {len(held)} are held")
        for _ in range(calls):
            held.popleft().go()

    def through(
        self,
        name: str,
        call: Callable[..., Any],
        arguments: tuple[Any, ...],
        more: dict[str, Any],
        *,
        waits: bool = True,
    ) -> Any:
        """Make one call, with its fault; it is held only if its answer may be awaited."""
        self.calls.append(name)
        fault = self._next.popleft() if self._next else None

        def make() -> Any:
            return call(*arguments, **more) if fault is None else fault(call, name, arguments, more)

        if self._held is None or not waits:
            return make()
        held = Held(make, self._wait)
        self._held.append(held)
        return held


def faulty(service: S, interface: type[S], faults: Faults, *methods: str) -> S:
    """Return the service with faults in front of ``methods``, or of all abstract methods that may be awaited.

    Methods that answer without waiting (``count``, ``sizes``) and ``commit`` are never held, and are passed through
    unless they are named. Raises ``ValueError`` for a method that the interface does not have, and if none is named
    for an interface without awaitable answers.
    """
    names = {name for name in dir(interface) if not name.startswith("_")}
    calls = {name for name in names if callable(getattr(interface, name))}
    waits = {name for name in calls if _may_be_waited_for(getattr(interface, name))}
    unknown = set(methods) - calls
    if unknown:
        raise ValueError(f"{interface.__name__} has no method {', '.join(sorted(unknown))}")
    concerned = set(methods) or waits & _abstract(interface)
    if not concerned:
        raise ValueError(f"no method of {interface.__name__} may be awaited: name the methods to fault")

    def method(name: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            made = getattr(service, name)
            if name not in concerned:
                return made(*arguments, **more)
            return faults.through(name, made, arguments, more, waits=name in waits)

        return call

    def attribute(name: str) -> property:
        return property(lambda self: getattr(service, name))

    body: dict[str, Any] = {name: method(name) if name in calls else attribute(name) for name in names}
    body["__getattr__"] = lambda self, name: getattr(service, name)
    return cast(S, type(f"Faulty{interface.__name__}", (interface,), body)())


def _failed(answer: Any, error: Exception) -> Any:
    """Raise the error after the call is done."""
    if not isinstance(answer, Awaitable):
        raise error

    async def wait() -> None:
        await answer
        raise error

    return wait()


async def _both(first: Awaitable[Any], second: Any) -> Any:
    with suppress(Exception):
        await first
    return await second if isinstance(second, Awaitable) else second


def _nothing() -> None:
    pass


_WAITED_FOR: Final = ("Maybe", "Commit", "Awaitable", "Coroutine")


def _may_be_waited_for(method: Callable[..., Any]) -> bool:
    said = str(getattr(method, "__annotations__", {}).get("return", ""))
    return iscoroutinefunction(method) or any(word in said for word in _WAITED_FOR)


def _abstract(interface: type[Any]) -> frozenset[str]:
    found: frozenset[str] = getattr(interface, "__abstractmethods__", frozenset())
    return found
