"""Times the steps of coroutines: between two awaits a coroutine blocks the event loop.

:class:`kinmqtt.hooks.calls.Call` times the call itself, and wraps a coroutine that it returns in this.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class TimedCoroutine(Coroutine[Any, Any, T]):
    """Drives another coroutine and reports the duration of each step.

    ``send``, ``throw`` and ``close`` are passed on, so closing or cancelling before the first step works as usual.
    """

    __slots__ = ("__name__", "__qualname__", "_coroutine", "_report", "_timer")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], timer: Callable[[], float], report: Callable[[float], object]
    ) -> None:
        """``report`` is called with the duration of each step in seconds, measured by ``timer``."""
        self._coroutine = coroutine
        self._timer = timer
        self._report = report
        self.__name__ = getattr(coroutine, "__name__", type(coroutine).__name__)
        self.__qualname__ = getattr(coroutine, "__qualname__", self.__name__)

    def send(self, value: Any) -> Any:
        """See :meth:`collections.abc.Coroutine.send`."""
        began = self._timer()
        try:
            return self._coroutine.send(value)
        finally:
            self._report(self._timer() - began)

    def throw(
        self, type_: Any, value: BaseException | object = None, traceback: TracebackType | None = None, /
    ) -> Any:
        """See :meth:`collections.abc.Coroutine.throw`; older callers pass a type and a value."""
        error = value if isinstance(value, BaseException) else type_
        if traceback is not None and isinstance(error, BaseException):
            error = error.with_traceback(traceback)
        began = self._timer()
        try:
            return self._coroutine.throw(error)
        finally:
            self._report(self._timer() - began)

    def close(self) -> None:
        """See :meth:`collections.abc.Coroutine.close`."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        value: Any = None
        step: Callable[[Any], Any] = self.send
        while True:
            try:
                waited_for = step(value)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                value, step = (yield waited_for), self.send
            except GeneratorExit:
                self.close()
                raise
            except BaseException as error:
                value, step = error, self.throw
