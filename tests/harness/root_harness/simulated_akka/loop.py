"""An event loop of asyncio for one simulated process: its time is the world's, and it stands still with its node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kinmqtt.testing.world.schedule import NodeCall, NodeClock


class _Timer(asyncio.TimerHandle):
    """A timer of the loop, which ends that of the clock."""

    __slots__ = ("call",)

    call: NodeCall

    def cancel(self) -> None:
        super().cancel()
        self.call.cancel()


class NodeLoop:
    """What asyncio needs for tasks, futures and timers. There are no sockets, and work of threads is done at once.

    To asyncio it is an event loop; it has but the methods that are used.
    """

    def __init__(
        self,
        clock: NodeClock,
        soon: Callable[[Callable[[], object]], object],
        failed: Callable[[str], object],
    ) -> None:
        """``soon`` makes a call in the process's next turn; ``failed`` gets what was raised into the loop."""
        self._clock = clock
        self._soon = soon
        self._failed = failed
        self._loop: Any = self

    def around(self, call: Callable[[], object]) -> None:
        """Make a call while this is the running loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)
        try:
            call()
        finally:
            asyncio._set_running_loop(before)

    def time(self) -> float:
        """Return the time that timers are for, in seconds."""
        return self._clock.monotonic()

    def get_debug(self) -> bool:
        """Tell asyncio that nothing is to be checked more than usual."""
        return False

    def is_running(self) -> bool:
        """Tell that it runs."""
        return True

    def is_closed(self) -> bool:
        """Tell that it is not closed."""
        return False

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """Make a call in one of the process's next turns."""
        handle = asyncio.Handle(callback, args, self._loop, context)

        def run() -> None:
            if not handle.cancelled():
                handle._run()

        self._soon(run)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Make a call after a time."""
        timer = _Timer(self.time() + delay, callback, args, self._loop, context)
        timer.call = self._clock.later(delay, timer._run)
        return timer

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Make a call at a time."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: the handle itself ends the timer."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self._loop)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        """Run a coroutine."""
        task: Any = asyncio.Task(coro, loop=self._loop, name=name, context=context)
        # A process that was killed has not ended its tasks, and that is no mistake.
        task._log_destroy_pending = False
        return task  # type: ignore[no-any-return]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Make a call at once, in the place of a thread."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what was raised into the loop."""
        if self._clock.is_dead:
            return
        self._failed(f"{context.get('message')}: {context.get('exception')!r}")
