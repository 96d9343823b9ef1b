"""Of the compiled twin and the source the right one is imported, and the broker says which."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import kinmqtt
from kinmqtt import _twin

SUFFIX = EXTENSION_SUFFIXES[0]
MADE = [f"package/mqtt/framing{SUFFIX}", f"package__group{SUFFIX}"]
OTHER_SOURCES = "plain Python: what was compiled is of other sources"
SEES = "import package; print(package.TWIN); import package.mqtt.framing as m; print(m.__file__)"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with one module in a package of its own, chosen as kinmqtt's are, and another package beside it."""
    folder = tmp_path / "package"
    (folder / "mqtt").mkdir(parents=True)
    (folder / "mqtt" / "__init__.py").write_text("")
    (folder / "mqtt" / "framing.py").write_text("HERE = 1\n")
    (folder / "mqtt" / "plain.py").write_text("NEVER = 1\n")
    (tmp_path / "package_spi").mkdir()
    (tmp_path / "package_spi" / "__init__.py").write_text("raise RuntimeError\n")
    (folder / "_twin.py").write_text(Path(_twin.__file__).read_text())
    (folder / "__init__.py").write_text((Path(kinmqtt.__file__)).read_text().replace("kinmqtt", "package"))
    return folder


def compiled(package: Path) -> None:
    """Put something there that an interpreter would take for compiled modules, and that can't be imported."""
    for path in MADE:
        (package.parent / path).write_bytes(b"none")
    _twin.write_note(package, _twin.digests(package, package.parent / "package_spi"), MADE)


def seen(package: Path, **environment: str) -> tuple[str, str]:
    """What a new interpreter says it runs, and where it found the module, or why it could not."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", SEES],
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


@pytest.mark.parametrize(("value", "pure"), [("", False), ("0", False), ("1", True), ("no", True)])
def test_the_environment_asks_for_the_source_with_all_but_nothing_and_0(
    value: str, pure: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """KINMQTT_PURE=0 is no wish for the source, neither in a running broker nor when one is built."""
    monkeypatch.setenv("KINMQTT_PURE", value)
    monkeypatch.setenv("CC", sys.executable)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    backend = runpy.run_path(str(Path(__file__).parents[1] / "build_backend.py"))

    assert _twin.asks_for_source() is pure
    assert backend["_can_compile"]() is not pure
    assert backend["_TWIN"]["asks_for_source"]() is pure


@pytest.mark.parametrize(
    "path", ["package/mqtt/framing.py", "package/mqtt/plain.py", "package_spi/__init__.py", *MADE]
)
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_what_was_compiled_of_other_sources_or_is_not_whole_is_passed_over(
    package: Path, path: str, how: str
) -> None:
    """Whichever file changes or is missing, of one that has constants built in elsewhere as well, the source runs."""
    compiled(package)
    file = package.parent / path
    if how == "changed":
        file.write_bytes(file.read_bytes() + b"\n")
    else:
        file.unlink()

    what, where = seen(package)

    assert what == OTHER_SOURCES
    assert where == str(package / "mqtt" / "framing.py") or path.endswith("/framing.py")


def test_a_source_saved_while_the_compiler_runs_makes_it_old(package: Path) -> None:
    """The note has the digests that were taken before."""
    before = _twin.digests(package)
    compiled(package)
    (package / "mqtt" / "framing.py").write_text("HERE = 2\n")
    _twin.write_note(package, before, MADE)

    assert seen(package)[0] == OTHER_SOURCES


def test_the_shared_extension_module_must_be_the_one_that_would_be_imported(package: Path, tmp_path: Path) -> None:
    """One of the same name that is found earlier is of another build."""
    compiled(package)
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / MADE[1]).write_bytes(b"another")

    path = os.pathsep.join([str(tmp_path / "earlier"), str(tmp_path)])
    assert seen(package, PYTHONPATH=path) == (OTHER_SOURCES, str(package / "mqtt" / "framing.py"))


@pytest.mark.parametrize("how", ["nothing", "garbage", "not text", "first lines"])
def test_a_note_that_says_nothing_leads_to_the_source(package: Path, how: str) -> None:
    """What can't be told to be of these sources doesn't count."""
    compiled(package)
    note = package / _twin.NOTE
    whole = note.read_bytes()
    pieces = {"nothing": b"", "garbage": b"what is this\n", "not text": b"\xff\xfe\x00"}
    note.write_bytes(pieces.get(how, b"".join(whole.splitlines(keepends=True)[:-1])))

    assert seen(package) == (OTHER_SOURCES, str(package / "mqtt" / "framing.py"))


def test_a_note_that_can_not_be_read_leads_to_the_source(package: Path) -> None:
    """The broker runs all the same."""
    compiled(package)
    (package / _twin.NOTE).unlink()
    (package / _twin.NOTE).mkdir()

    assert seen(package) == (
        "plain Python: the note of what was compiled can't be read",
        str(package / "mqtt" / "framing.py"),
    )


def test_a_note_is_written_in_one_step(package: Path) -> None:
    """Nothing else is left beside it."""
    compiled(package)

    assert [path.name for path in package.glob("compiled*")] == [_twin.NOTE]


def test_extension_modules_without_a_note_are_passed_over(package: Path) -> None:
    """A build that was broken off leaves some."""
    compiled(package)
    (package / _twin.NOTE).unlink()

    assert seen(package) == ("plain Python", str(package / "mqtt" / "framing.py"))


@pytest.mark.parametrize("tag", ["another tag", "the same tag"])
def test_modules_compiled_for_another_interpreter_are_no_help(package: Path, tag: str) -> None:
    """An interpreter finds nothing under another's suffix, and says that it runs the source."""
    compiled(package)
    made = (package / "mqtt" / f"framing{SUFFIX}").rename(package / "mqtt" / "framing.cpython-38-other.so")
    _twin.write_note(package, _twin.digests(package), [made.relative_to(package.parent).as_posix()])
    if tag == "another tag":
        (package / _twin.NOTE).rename(package / "compiled-cpython-38.sha256")

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
