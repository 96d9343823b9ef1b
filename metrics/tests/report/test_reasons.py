"""Reasons in words that a person understands."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.report import make
from kinmqtt_metrics.report.reasons import of_drop, of_end, of_event
from kinmqtt_spi.reasons import ReasonCode
from metrics_harness.table_data import START, write


@pytest.mark.parametrize("code", ReasonCode)
def test_every_reason_code_has_plain_words(code: ReasonCode) -> None:
    """In each event: none is told by the name that the standard gives it alone."""
    for event in ("disconnected", "limited", "authentication_refused", "authorization_refused"):
        said = of_event(event, code.name.lower())
        assert len(said.split()) >= 3, said
        assert "_" not in said


def test_a_connection_ends_by_no_success() -> None:
    """Code 0 of a DISCONNECT is what an orderly client says at its end."""
    assert of_end("success") == "the client disconnected (normal disconnection)"
    assert of_end("connection_lost").startswith("the connection broke")


def test_an_unknown_reason_keeps_its_own_words() -> None:
    """A plugin may have others, and a table may be of a later version."""
    assert of_end("moon_phase") == "moon phase"
    assert of_drop("<b>") == "<b>"
    assert of_end(None) == of_end("") == "no reason said"


def test_the_page_says_why_connections_ended(tmp_path: Path) -> None:
    """In its table of lengths."""
    row = {"window_start": START, "window_s": 10, "node": "a", "reason": "success", "connections": 3, "sum_s": 1.0}
    write(tmp_path, t.CONNECTIONS, [row | {"max_s": 1.0}])

    make(tmp_path, tmp_path / "report.html")

    page = (tmp_path / "report.html").read_text("utf-8")
    assert "the client disconnected (normal disconnection)" in page
    assert ">success<" not in page
