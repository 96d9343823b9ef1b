"""Numbers that are told on the command line or from Python: a wrong one is named with its bounds."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics.command import main
from kinmqtt_metrics.errors import PipelineError
from kinmqtt_metrics.number_arguments import Number
from kinmqtt_metrics.pipeline.settings import BOUNDS, PipelineSettings

WRONG = {
    "--segments": ("0", "-1", "1.5"),
    "--trigger-s": ("nan", "inf", "-1"),
    "--window-s": ("0", "1000000000000", "nan"),
    "--watermark-s": ("nan", "inf", "-1"),
    "--idle-s": ("nan", "-1", "soon"),
    "--ahead-s": ("nan", "inf", "-1"),
    "--top": ("-1",),
    "--storm-connects": ("0",),
    "--storm-client": ("0",),
}
PIPELINE = [(option, value) for option, values in WRONG.items() for value in values]
RULES = [
    ("--quantile", "nan"), ("--factor", "inf"), ("--over", "0"), ("--over", "10000000000000"), ("--min-windows", "0"),
    ("--others", "0"), ("--least", "inf"), ("--rules", "-1"), ("--rules", "99999999999"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), PIPELINE)
def test_an_option_without_sense_is_refused_before_anything_is_made(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that says the bounds; in particular no folder of tables is settled for a window that can't be."""
    (tmp_path / "landing").mkdir()
    arguments = ["--landing", str(tmp_path / "landing"), "--tables", str(tmp_path / "tables")]

    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "run", *arguments, f"{option}={value}"])

    assert ended.value.code == 2
    assert f"argument {option}: must be a" in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["landing"]


@pytest.mark.parametrize(("option", "value"), RULES)
def test_options_of_rules_have_bounds_as_well(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark is not started for them."""
    with pytest.raises(SystemExit) as ended:
        main(["rules", "--out", "limits.toml", "--tables", "tables", f"{option}={value}"])

    assert ended.value.code == 2
    assert f"argument {option}: must be a" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("name", "value"), [(n[2:].replace("-", "_"), float(v)) for n, v in PIPELINE if v != "soon"])
def test_settings_made_in_python_have_the_same_bounds(name: str, value: Any) -> None:
    """Who runs the pipeline from a program is told the same."""
    with pytest.raises(PipelineError, match=f"^{name} must be a"):
        PipelineSettings(Path("landing"), Path("tables"), **{name: value})


def test_helps_say_unit_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to try what is taken."""
    with pytest.raises(SystemExit):
        main(["pipeline", "run", "--help"])

    said = " ".join(capsys.readouterr().out.split())
    for bounds in BOUNDS.values():
        assert str(bounds) in said


@given(st.floats() | st.integers(), st.floats(allow_nan=False), st.floats(allow_nan=False), st.booleans())
def test_what_is_taken_lies_within(value: float, least: float, most: float, above: bool) -> None:
    """Whatever is written; not a number is within no bounds."""
    bounds = Number(least, most, above=above)
    try:
        taken = bounds(repr(value))
    except argparse.ArgumentTypeError:
        assert not least < value < most
    else:
        assert least <= taken <= most
        assert not math.isnan(taken)
        assert taken != least or not above
