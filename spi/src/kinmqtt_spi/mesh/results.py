"""Results that are available later, and how awaitables are driven, without an event loop of our own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Protocol, TypeAlias

from kinmqtt_spi.services.plugin import Clock

PACE_S: Final = 0.001
"""How long :func:`polling` waits between two looks at an awaitable, in seconds."""

Run: TypeAlias = Callable[[Awaitable[Any], Callable[[Any], None], Callable[[Exception], None]], None]
"""Drives an awaitable, and calls the one with its result or the other with its error: ``run(it, done, failed)``.

The call may be made before ``run`` returns. A broker on Twisted passes on its Deferred's callbacks.
"""


class Result(Protocol):
    """A result that is available later. What is set or failed again is ignored."""

    @property
    def awaitable(self) -> Awaitable[Any]:
        """What a caller of the backend gets."""

    def set(self, value: Any) -> None:
        """Complete it."""

    def fail(self, error: Exception) -> None:
        """Let it raise."""


class PendingResult(Awaitable[Any]):
    """A :class:`Result` for drivers that look repeatedly, as :func:`polling` does: never await it under Twisted."""

    __slots__ = ("_error", "_value")

    def __init__(self) -> None:
        self._value: list[Any] = []
        self._error: Exception | None = None

    @property
    def awaitable(self) -> Awaitable[Any]:
        """The result itself."""
        return self

    def set(self, value: Any) -> None:
        """Complete it."""
        if not self.done():
            self._value.append(value)

    def fail(self, error: Exception) -> None:
        """Let it raise."""
        if not self.done():
            self._error = error

    def done(self) -> bool:
        """Tell whether it has its value or its error."""
        return bool(self._value) or self._error is not None

    def __await__(self) -> Generator[Any, None, Any]:
        while not self.done():
            yield
        if self._error is not None:
            raise self._error
        return self._value[0]


def polling(clock: Clock, pace_s: float = PACE_S) -> Run:
    """Return a :data:`Run` that looks at an awaitable at once, and then every ``pace_s`` seconds of the clock."""

    def run(awaitable: Awaitable[Any], done: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        coroutine = _await(awaitable)

        def look() -> None:
            try:
                coroutine.send(None)
            except StopIteration as end:
                done(end.value)
            except Exception as error:
                failed(error)
            else:
                clock.later(pace_s, look)

        look()

    return run


def _await(awaitable: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    async def wait() -> Any:
        return await awaitable

    return wait()
