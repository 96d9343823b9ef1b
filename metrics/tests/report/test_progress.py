"""Who waits is told, and nobody else."""

from __future__ import annotations

import io

import pytest

from kinmqtt_metrics.report.progress import Progress


class Terminal(io.StringIO):
    """Looks like one."""

    def isatty(self) -> bool:
        """It does."""
        return True


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()])
def test_short_work_says_nothing(out: io.StringIO) -> None:
    """A report of a second is quiet."""
    progress = Progress(out, lambda: 100.0)

    progress.update("reading", 1, 2)
    progress.end()

    assert out.getvalue() == ""


def test_long_work_tells_how_far_it_is() -> None:
    """On a terminal in one line, which is gone in the end; in a file a line now and then."""
    now = [0.0]
    terminal, file = Terminal(), io.StringIO()
    shown, written = Progress(terminal, lambda: now[0]), Progress(file, lambda: now[0])

    for done in range(100):
        now[0] = done / 10
        for progress in (shown, written):
            progress.update("reading", done, 100)
    shown.end()

    assert file.getvalue() == "reading: 20 of 100\nreading: 70 of 100\n"
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")
