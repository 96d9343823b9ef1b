"""What others say on stderr is heard until this process is asked to end."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr

from kinmqtt_metrics.quiet import Passing, quiet_after

STACK = "Exception in thread x java.lang.StackOverflowError\\n\\tat java.base/java.util.regex.Pattern\\n"


def heard(said: str, ending: threading.Event, grace_s: float, then: Callable[[], None] = lambda: None) -> str:
    """What is passed on of what a child says on its stderr."""
    source, sink = os.pipe()
    passing = Passing(ending, sink, grace_s)
    with passing.pipe() as stderr:
        child = subprocess.Popen([sys.executable, "-c", f"import os; os.write(2, b'{said}')"], stderr=stderr)
    then()
    child.wait(30)
    assert passing.thread is not None
    passing.thread.join(30)
    os.close(sink)
    with open(source, encoding="utf-8") as file:
        return file.read()


def test_what_a_child_says_is_passed_on() -> None:
    """A stack as well, as long as nobody asks for the end: it may be why the process fails."""
    assert heard("Setting Spark log level\\n", threading.Event(), 30) == "Setting Spark log level\n"
    assert "StackOverflowError" in heard(STACK, threading.Event(), 0.01)


def test_a_stack_that_comes_before_the_signal_is_not_passed_on() -> None:
    """Where a service manager signals driver and Java together, Java may fail before the driver hears of it."""
    ending = threading.Event()

    assert heard(STACK, ending, 30, ending.set) == ""


def test_what_comes_after_the_signal_is_not_passed_on() -> None:
    """Whatever it is."""
    ending = threading.Event()
    ending.set()

    assert heard("26/11/22 WARN Somebody: was interrupted\\n", ending, 30) == ""


def test_what_is_held_back_is_waited_for() -> None:
    """A process that fails ends after Java's reason was passed on."""
    source, sink = os.pipe()
    passing = Passing(threading.Event(), sink, 0.05)
    passing._holding.acquire()
    threading.Timer(0.01, passing._holding.release).start()

    passing.flush()

    assert not passing._holding.locked()
    os.close(source)
    os.close(sink)


def test_threads_of_this_process_are_not_heard_after_the_signal() -> None:
    """Spark's threads print their own failures to ``sys.stderr``, and Py4J logs there."""
    ending, stderr = threading.Event(), io.StringIO()

    with redirect_stderr(stderr):
        with quiet_after(ending):
            print("before", file=sys.stderr)
            ending.set()
            print("Traceback (most recent call last)", file=sys.stderr)
        print("after", file=sys.stderr)

    assert stderr.getvalue() == "before\nafter\n"
