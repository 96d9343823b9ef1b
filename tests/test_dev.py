"""What dev.py decides: which Pythons there are, where an environment lies, and which packages a system lacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
HERE = f"python{sys.version_info.major}.{sys.version_info.minor}"

WORKS = "#!/bin/sh\nexit 0\n"
"""A Python of whichever version it is asked for, as far as dev.py looks."""
FAILS = '#!/bin/sh\necho "pyenv: $(basename "$0"): command not found" >&2\nexit 127\n'
"""What pyenv has on the path for a version that is installed and not chosen."""

DEBIAN_12 = {"ID": "debian", "VERSION_ID": "12"}
DEBIAN_13 = {"ID": "debian", "VERSION_ID": "13"}
DEBIAN_NEXT = {"ID": "debian", "VERSION_CODENAME": "forky"}
UBUNTU_24 = {"ID": "ubuntu", "VERSION_ID": "24.04"}


def loaded() -> Any:
    """dev.py as a module of its own, in which a test may replace what it likes."""
    spec = spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dev(monkeypatch: pytest.MonkeyPatch) -> Any:
    """dev.py, as it is without a word about it in the environment."""
    monkeypatch.delenv("KINMQTT_VENV", raising=False)
    return loaded()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an empty ``bin``, which is all of the path, and where pyenv's Pythons would be in ``pyenv``."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def program(path: Path, text: str = WORKS) -> str:
    """A program; answers its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


# Pythons


def test_supported_pythons_are_found_oldest_first(dev: Any, machine: Path) -> None:
    """Whichever of them are on the path; one that is not supported is not looked for."""
    dev.PYTHONS = ((9, 1), (9, 2), (9, 3))
    paths = {version: program(machine / "bin" / f"python{version}") for version in ("9.3", "9.1", "9.4")}

    assert dev.installed_pythons() == [("9.1", paths["9.1"]), ("9.3", paths["9.3"])]


def test_a_stand_in_for_a_python_that_is_not_chosen_is_none(dev: Any, machine: Path) -> None:
    """pyenv's stand-in is there and fails; the Python itself is found where pyenv has it."""
    dev.PYTHONS = ((9, 1), (9, 2))
    program(machine / "bin" / "python9.1", FAILS)
    program(machine / "bin" / "python9.2", FAILS)
    real = program(machine / "pyenv" / "versions" / "9.2.0" / "bin" / "python9.2")

    assert dev.installed_pythons() == [("9.2", real)]


def test_of_pyenvs_pythons_the_newest_release_is_taken(dev: Any, machine: Path) -> None:
    """By number, and neither an environment of somebody's, nor what has not come out, nor another version."""
    dev.PYTHONS = ((9, 1),)
    for name in ("9.1.9", "9.1.10", "9.1-dev", "9.1.11rc1", "9.1.12t", "9.11.1", "9.1.99-of-mine"):
        program(machine / "pyenv" / "versions" / name / "bin" / "python9.1")

    assert dev.installed_pythons() == [("9.1", str(machine / "pyenv/versions/9.1.10/bin/python9.1"))]


def test_a_program_of_the_right_name_and_another_version_is_passed_over(dev: Any, machine: Path) -> None:
    """What it says of itself counts."""
    dev.PYTHONS = ((9, 1),)
    (machine / "bin" / "python9.1").symlink_to(sys.executable)

    assert dev.installed_pythons() == []


def test_the_python_that_runs_dev_py_is_one_of_them(dev: Any, machine: Path) -> None:
    """Though it is not on the path under its name."""
    dev.PYTHONS = (sys.version_info[:2],)

    [(version, path)] = dev.installed_pythons()

    assert f"python{version}" == HERE
    assert path == sys._base_executable  # type: ignore[attr-defined]


def test_pythons_are_listed_one_a_line() -> None:
    """Version, space, path: .ci/run reads it."""
    done = subprocess.run([sys.executable, "dev.py", "pythons"], cwd=ROOT, capture_output=True, text=True, check=True)

    listed = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert HERE.removeprefix("python") in listed
    assert all(os.path.isabs(path) for path in listed.values())


def test_what_continuous_integration_names_is_there() -> None:
    """pytest passes over a path to leave out that is none, without a word."""
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    named = set(re.findall(r"(?<![\w./-])(?:core|metrics|plugins|spi|tests)/[\w/.]*\w", text))

    assert len(named) > 15
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


# Environments


@pytest.mark.parametrize(
    ("says", "is_at"),
    [
        (None, str(ROOT / ".venv")),
        ("", str(ROOT / ".venv")),
        (".venv-9.1", str(ROOT / ".venv-9.1")),
        ("/somewhere/else", "/somewhere/else"),
        ("~/else", os.path.expanduser("~/else")),
    ],
)
def test_a_variable_names_the_environment(monkeypatch: pytest.MonkeyPatch, says: str | None, is_at: str) -> None:
    """Relative to the checkout, wherever dev.py is started; everything that is run comes from there."""
    monkeypatch.delenv("KINMQTT_VENV", raising=False)
    if says is not None:
        monkeypatch.setenv("KINMQTT_VENV", says)
    dev = loaded()

    assert is_at == dev.VENV
    assert os.path.join(is_at, "bin", "python") == dev.PYTHON
    assert os.path.dirname(dev.STAMP) == is_at


def test_no_other_folder_is_cleared(tmp_path: Path) -> None:
    """An environment is made where nothing or another environment is, and never in place of somebody's files."""
    precious = tmp_path / "thesis.txt"
    precious.write_text("the only copy")
    environment = {**os.environ, "KINMQTT_VENV": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", "import dev; dev.make_venv()"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert f"{tmp_path} holds something else than a virtual environment" in done.stderr
    assert precious.read_text() == "the only copy"


@pytest.mark.parametrize(
    ("holds", "may"), [(None, True), ([], True), (["pyvenv.cfg", "bin"], True), (["bin"], False), (["a"], False)]
)
def test_what_may_be_cleared(dev: Any, tmp_path: Path, holds: list[str] | None, may: bool) -> None:
    """What is not there, what is empty, and what is an environment."""
    folder = tmp_path / "folder"
    if holds is not None:
        folder.mkdir()
        for name in holds:
            (folder / name).touch()

    assert dev.may_be_cleared(str(folder)) is may


def test_a_file_is_not_cleared(dev: Any, tmp_path: Path) -> None:
    """An environment is a folder."""
    (tmp_path / "file").touch()

    assert not dev.may_be_cleared(str(tmp_path / "file"))


def test_an_environment_half_made_is_made_anew(dev: Any) -> None:
    """.venv is ours, also where an interrupted run left no more than a part of it."""
    assert dev.may_be_cleared(str(ROOT / ".venv"))


def test_all_environments_share_what_npm_installs(
    dev: Any, machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one does not install it again, a changed lock file does; and where it failed it is tried again."""
    program(machine / "bin" / "npm")
    calls: list[Any] = []
    ends = [0, 1, 0]
    monkeypatch.setattr(subprocess, "call", lambda *words, **more: calls.append(words) or ends[len(calls) - 1])
    dev.NPM_STAMP = str(tmp_path / "stamp.json")
    dev.npm_installed = lambda: True
    inputs = ["as locked"]
    dev.npm_inputs = lambda: inputs[0]

    counts = []
    for change in ("as locked", "as locked", "changed", "changed", "changed"):
        inputs[0] = change
        dev.install_npm()
        counts.append(len(calls))

    assert counts == [1, 1, 2, 3, 3]


# Packages of the system


@pytest.fixture
def bare(dev: Any, machine: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """dev.py on a system with apt-get and nothing else."""
    program(machine / "bin" / "apt-get")
    for name in ("JAVA_HOME", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    dev.CA_BUNDLE = str(machine / "none")
    dev.found = lambda name: None
    dev.venv_state = lambda: "make"
    dev.can_make_venv = lambda: False
    return dev


ALWAYS = {
    f"{HERE}-venv", "ca-certificates", "haproxy", "mosquitto", "mosquitto-clients", "nodejs", "npm", "openssl",
    "redis-server",
}  # fmt: skip


@pytest.mark.parametrize(
    ("release", "more"),
    [
        (DEBIAN_12, {"chromium", "openjdk-17-jre-headless"}),
        (DEBIAN_13, {"chromium", "openjdk-21-jre-headless"}),
        (DEBIAN_NEXT, {"chromium", "openjdk-21-jre-headless"}),
        (UBUNTU_24, {"openjdk-17-jre-headless"}),
        ({}, {"chromium", "openjdk-17-jre-headless"}),
    ],
    ids=["debian-12", "debian-13", "debian-next", "ubuntu-24.04", "unknown"],
)
def test_the_tests_ask_for_packages_that_the_release_has(bare: Any, release: dict[str, str], more: set[str]) -> None:
    """Debian 13 has no Java 17, and Ubuntu's chromium is no package; the rest has the same name everywhere."""
    bare.os_release = lambda: release

    assert set(bare.missing_tools(tests=True)) == ALWAYS | more


def test_a_broker_needs_next_to_nothing(bare: Any) -> None:
    """What makes the environment, and what lets pip know whom it speaks to."""
    assert set(bare.missing_tools(tests=False)) == {f"{HERE}-venv", "ca-certificates"}


def test_a_python_that_can_make_environments_needs_no_package(bare: Any) -> None:
    """Only Debian keeps that part of Python apart."""
    bare.can_make_venv = lambda: True

    assert set(bare.missing_tools(tests=False)) == {"ca-certificates"}


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25.0.3" 2026-04-21', 25),
        ('java version "1.8.0_202"', 8),
        ("java: not found", 0),
    ],
)
def test_java_says_how_old_it_is(dev: Any, machine: Path, said: str, version: int, monkeypatch: Any) -> None:
    """The number before the first dot, or behind the one that all old ones have."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    program(machine / "bin" / "java", f"#!/bin/sh\necho '{said}' >&2\n")

    assert dev.java_version() == version


def test_compiling_asks_for_the_headers_of_this_python(dev: Any, machine: Path, monkeypatch: Any) -> None:
    """And for a compiler, where there is none."""
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(machine))
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: "x86_64-linux-gnu-gcc -pthread")

    assert {"gcc", f"{HERE}-dev"} <= set(dev.missing_compiler())
