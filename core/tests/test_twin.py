"""Of the compiled twin and the source the right one is imported, and the broker says which."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import kinmqtt
from kinmqtt import _twin

SEES = "import package; print(package.TWIN); import package.mqtt.framing as m; print(m.__file__)"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with one module in a package of its own, chosen as kinmqtt's are."""
    folder = tmp_path / "package"
    (folder / "mqtt").mkdir(parents=True)
    (folder / "mqtt" / "__init__.py").write_text("")
    (folder / "mqtt" / "framing.py").write_text("HERE = 1\n")
    (folder / "_twin.py").write_text(Path(_twin.__file__).read_text())
    (folder / "__init__.py").write_text((Path(kinmqtt.__file__)).read_text().replace("kinmqtt", "package"))
    return folder


def compiled(package: Path) -> None:
    """Put something there that an interpreter would take for a compiled module, and that can't be imported."""
    (package / "mqtt" / f"framing{EXTENSION_SUFFIXES[0]}").write_bytes(b"none")
    _twin.write_note(package, package, ["mqtt/framing.py"])


def seen(package: Path, **environment: str) -> tuple[str, str]:
    """What a new interpreter says it runs, and where it found the module, or why it could not."""
    done = subprocess.run(
        [sys.executable, "-c", SEES],
        cwd=package.parent,
        env={"PYTHONPATH": str(package.parent), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    return lines[0], lines[-1]


def test_without_compiled_modules_the_source_runs(package: Path) -> None:
    """Where nothing was compiled, nothing is looked for."""
    assert seen(package) == ("plain Python", str(package / "mqtt" / "framing.py"))


def test_compiled_modules_of_the_same_source_are_taken(package: Path) -> None:
    """The interpreter finds them first, as it does all extension modules."""
    compiled(package)

    what, where = seen(package)

    assert what == "compiled"
    assert where.startswith("ImportError")


def test_the_environment_can_ask_for_the_source(package: Path) -> None:
    """KINMQTT_PURE=1 passes the compiled modules over."""
    compiled(package)

    what, where = seen(package, KINMQTT_PURE="1")

    assert what == "plain Python, as KINMQTT_PURE asks"
    assert where == str(package / "mqtt" / "framing.py")


@pytest.mark.parametrize("how", ["changed", "gone", "unreadable note"])
def test_compiled_modules_of_another_source_are_passed_over(package: Path, how: str) -> None:
    """Who edits a checkout runs what they wrote, not what was compiled before."""
    compiled(package)
    if how == "changed":
        (package / "mqtt" / "framing.py").write_text("HERE = 2\n")
    elif how == "gone":
        _twin.write_note(package, package, ["mqtt/framing.py", "mqtt/__init__.py"])
        (package / "mqtt" / "__init__.py").unlink()
    else:
        (package / _twin.NOTE).write_text("what is this\n")

    what, where = seen(package)

    assert what == "plain Python: what was compiled is of other sources"
    assert where == str(package / "mqtt" / "framing.py")


def test_modules_compiled_for_another_interpreter_are_no_help(package: Path) -> None:
    """An interpreter finds nothing under another's suffix, and says that it runs the source."""
    compiled(package)
    made = package / "mqtt" / f"framing{EXTENSION_SUFFIXES[0]}"
    made.rename(made.with_name("framing.cpython-38-other.so"))

    assert seen(package) == (
        "plain Python: it was compiled for another interpreter",
        str(package / "mqtt" / "framing.py"),
    )


def test_the_broker_says_which_one_runs() -> None:
    """`kinmqtt version` names it, and it is true of the modules of this process."""
    from kinmqtt.mqtt import framing

    said = subprocess.run(
        [sys.executable, "-m", "kinmqtt", "version"], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    assert said.endswith(f"; {kinmqtt.TWIN})\n")
    assert (kinmqtt.TWIN == "compiled") == (not framing.__file__.endswith(".py"))
