"""docs/writing-a-plugin.md, followed to the letter; and what `kinmqtt new-plugin` begins, for each family."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from core_harness.brokers import run_command
from kinmqtt_spi.services import FAMILIES
from root_harness.walkthrough import Command, File, Walk, agrees, steps
from spi_harness.processes import free_port

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "writing-a-plugin.md"


def environment_of(folder: Path) -> dict[str, str]:
    """A virtual environment of a reader's own, in which everything that is installed here is there already."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "zz_installed_here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    scripts = sysconfig.get_path("scripts")
    for name in ("kinmqtt", "pip", "pytest"):
        program = folder / "bin" / name
        text = (Path(scripts) / name).read_text().split("\n", 1)[1]
        program.write_text(f"#!{folder / 'bin' / 'python'}\n{text}")
        program.chmod(0o755)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("KINMQTT", "PYTEST", "COV"))},
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
        "COLUMNS": "200",
        "LC_ALL": "C.UTF-8",
        # Nothing is fetched, and what builds a distribution is the setuptools that is here.
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    """Every file is written, every command runs, and prints what the page says."""
    environment_of(tmp_path / "second")
    walk = Walk(tmp_path, environment_of(tmp_path / "venv"), free_port())

    differences = walk.follow(PAGE.read_text(encoding="utf-8"))

    assert not differences, "\n\n".join(differences)


def test_the_page_has_something_to_follow() -> None:
    """An empty list of steps would let the test above pass."""
    found = list(steps(PAGE.read_text(encoding="utf-8")))

    assert sum(isinstance(step, File) for step in found) == 5
    assert sum(isinstance(step, Command) for step in found) >= 12


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_begun_passes_its_tests(family: str, tmp_path: Path) -> None:
    """Each family's template is a plugin that keeps its contract and works in a broker; all its tests run."""
    done = run_command("new-plugin", "my_thing", "--family", family, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "kinmqtt-my-thing"

    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
    )
    lint = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--isolated", "--line-length=118", "--select=E,F,I"],
        cwd=folder,
        capture_output=True,
        text=True,
    )

    assert tests.returncode == 0, tests.stdout
    assert lint.returncode == 0, lint.stdout
    assert not list(folder.rglob("*.in"))


# The reader


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("a\nb\n", "a\nb", True),
        ("a\n", "b", False),
        ("", "", True),
        ("a\n", "", False),
        ("", "a", False),
        ("took 3 s\n", "took … s", True),
        ("a\nb\nc\n", "a\n…", True),
        ("a\nb\nc\n", "…\nc", True),
        ("c\n", "…\nc", True),
        ("a\nb\n", "…\nc", False),
        ("a.c\n", "abc", False),
    ],
)
def test_what_is_printed_is_compared(printed: str, expected: str, same: bool) -> None:
    """An ellipsis stands for anything on its line, and alone for any lines; all else is taken by the letter."""
    assert agrees(printed, expected) is same


def test_a_page_that_is_wrong_is_found(tmp_path: Path) -> None:
    """Each command that prints something else is named, with both texts."""
    page = "```console\n$ echo one\none\n$ echo two\nthree\n```\n"

    [difference] = Walk(tmp_path, os.environ, 1883).follow(page)

    assert difference == "$ echo two\nexpected:\nthree\nprinted:\ntwo\n"


def test_a_page_is_read_in_order() -> None:
    """Files and commands, as they come; a command may go on on the next line."""
    page = (
        "<!-- included: a/b.py as c/d.py -->\n\n```python\nx = 1\n```\ntext\n"
        "```console\n$ one \\\n    two\nout\n$ python -c 'a\nb'\n```\n```toml\nnot run\n```\n"
    )

    assert list(steps(page)) == [
        File("c/d.py", "x = 1\n"),
        Command("one two", "out"),
        Command("python -c 'a\nb'", ""),
    ]
