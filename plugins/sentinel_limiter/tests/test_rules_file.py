"""A rules file that is looked at from time to time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinmqtt_sentinel_limiter import _rules_file
from kinmqtt_sentinel_limiter._rules_file import RulesFile

TWO = '[[flow]]\nname = "a"\ncount = 1\n\n[[flow]]\nname = "b"\ncount = 2\n'
RULE = '[[flow]]\nname = "a"\ncount = 1\n'


def _file(path: Path, text: str = RULE) -> RulesFile:
    path.write_text(text)
    file = RulesFile(path, ["taken"])
    file.read()
    return file


def test_a_file_that_did_not_change_is_not_read(tmp_path: Path) -> None:
    """A look finds nothing."""
    file = _file(tmp_path / "limits.toml")

    file.look()

    assert file.take_result() is None


def test_a_file_that_changed_is_found_once(tmp_path: Path) -> None:
    """Also where it was replaced by another of the same size and time."""
    file = _file(tmp_path / "limits.toml")
    times = os.stat(file.path)
    (tmp_path / "new").write_text(RULE.replace("1", "7"))
    os.utime(tmp_path / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "new").rename(file.path)

    file.look()
    file.look()
    found = file.take_result()

    assert found is not None and found.rules is not None
    assert found.rules.flow[0].count == 7
    assert file.take_result() is None


def test_a_file_that_is_cut_between_two_tables_is_not_taken(tmp_path: Path) -> None:
    """What is there of a file that is being written may be sound, and would drop the rules that are not."""
    file = _file(tmp_path / "limits.toml", TWO)
    file.path.write_text(RULE)
    file.look()
    cut = file.take_result()
    file.path.write_text(TWO + "# changed\n")

    found = []
    for _ in range(2):
        file.look()
        found.append(file.take_result())

    assert cut is None and found[0] is None
    assert found[1] is not None and found[1].rules is not None
    assert [rule.name for rule in found[1].rules.flow] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[flow]", ":1:"),
        ('[[flow]]\nname = "a"\n', ":1: flow[0].count: required key is missing"),
        (RULE.replace('"a"', '"taken"'), ':2:8: flow[0].name: another rule is called "taken"'),
    ],
)
def test_what_is_wrong_is_found_once(tmp_path: Path, text: str, problem: str) -> None:
    """A broken file is told with the place of each mistake, and not again until it changes."""
    file = _file(tmp_path / "limits.toml")
    file.path.write_text(text + "\n# longer\n")

    file.look()
    file.look()
    found = file.take_result()
    file.look()

    assert found is not None and found.rules is None
    assert problem in found.problems[0]
    assert file.take_result() is None


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    """And read again when it comes back."""
    file = _file(tmp_path / "limits.toml")
    file.path.unlink()
    file.look()
    file.look()
    gone = file.take_result()
    file.path.write_text(RULE)

    file.look()
    file.look()
    back = file.take_result()

    assert gone is not None and "there is no such file" in gone.problems[0]
    assert back is not None and back.rules is not None


def test_whatever_goes_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look never raises, as nobody would hear of it."""
    file = _file(tmp_path / "limits.toml")
    file.path.write_text(RULE + "\n")

    def fail(*arguments: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(_rules_file, "read_rules", fail)
    file.look()
    file.look()
    found = file.take_result()

    assert found is not None and found.problems == (f"{file.path}: no memory",)


def test_a_fifo_is_told(tmp_path: Path) -> None:
    """Nobody waits for somebody who writes to it, and the file that takes its place is read."""
    file = _file(tmp_path / "limits.toml")
    file.path.unlink()
    os.mkfifo(file.path)
    file.look()
    file.look()
    found = file.take_result()
    file.path.unlink()
    file.path.write_text(RULE)

    file.look()
    file.look()
    back = file.take_result()

    assert found is not None and found.problems == (f"{file.path}: can't be read: it is a FIFO, not a regular file",)
    assert back is not None and back.rules is not None
