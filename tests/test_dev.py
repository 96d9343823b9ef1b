"""What dev.py decides: which Pythons there are, where an environment lies, and which packages a system lacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
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


MODULES = ("environment", "packages", "pythons", "steps")
"""What dev.py imports from .ci/."""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Load dev.py and its modules anew, so that a test may replace what it likes; they are gone after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("KINMQTT_VENV", raising=False)

    def forget() -> None:
        for name in MODULES:
            sys.modules.pop(name, None)

    def loaded() -> Any:
        forget()
        spec = spec_from_file_location("dev", ROOT / "dev.py")
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield loaded
    forget()


@pytest.fixture
def dev(load: Callable[[], Any]) -> Any:
    """dev.py, as it is without a word about it in the environment."""
    return load()


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
    versions = ((9, 1), (9, 2), (9, 3))
    paths = {version: program(machine / "bin" / f"python{version}") for version in ("9.3", "9.1", "9.4")}

    assert dev.pythons.installed(versions) == [("9.1", paths["9.1"]), ("9.3", paths["9.3"])]


def test_a_stand_in_for_a_python_that_is_not_chosen_is_none(dev: Any, machine: Path) -> None:
    """pyenv's stand-in is there and fails; the Python itself is found where pyenv has it."""
    versions = ((9, 1), (9, 2))
    program(machine / "bin" / "python9.1", FAILS)
    program(machine / "bin" / "python9.2", FAILS)
    real = program(machine / "pyenv" / "versions" / "9.2.0" / "bin" / "python9.2")

    assert dev.pythons.installed(versions) == [("9.2", real)]


def test_of_pyenvs_pythons_the_newest_release_is_taken(dev: Any, machine: Path) -> None:
    """By number, and neither an environment of somebody's, nor what has not come out, nor another version."""
    versions = ((9, 1),)
    for name in ("9.1.9", "9.1.10", "9.1-dev", "9.1.11rc1", "9.1.12t", "9.11.1", "9.1.99-of-mine"):
        program(machine / "pyenv" / "versions" / name / "bin" / "python9.1")

    assert dev.pythons.installed(versions) == [("9.1", str(machine / "pyenv/versions/9.1.10/bin/python9.1"))]


def test_a_program_of_the_right_name_and_another_version_is_passed_over(dev: Any, machine: Path) -> None:
    """What it says of itself counts."""
    versions = ((9, 1),)
    (machine / "bin" / "python9.1").symlink_to(sys.executable)

    assert dev.pythons.installed(versions) == []


def test_the_python_that_runs_dev_py_is_one_of_them(dev: Any, machine: Path) -> None:
    """Though it is not on the path under its name."""
    versions = (sys.version_info[:2],)

    [(version, path)] = dev.pythons.installed(versions)

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

    assert len(named) > 6
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
def test_a_variable_names_the_environment(
    load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, says: str | None, is_at: str
) -> None:
    """Relative to the checkout, wherever dev.py is started; everything that is run comes from there."""
    if says is not None:
        monkeypatch.setenv("KINMQTT_VENV", says)
    environment = load().environment

    assert is_at == environment.VENV
    assert os.path.join(is_at, "bin", "python") == environment.PYTHON
    assert os.path.dirname(environment.STAMP) == is_at


def test_no_other_folder_is_cleared(tmp_path: Path) -> None:
    """An environment is made where nothing or another environment is, and never in place of somebody's files."""
    precious = tmp_path / "thesis.txt"
    precious.write_text("the only copy")
    environment = {**os.environ, "KINMQTT_VENV": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", "import dev; dev.environment.make_venv()"],
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

    assert dev.environment.may_be_cleared(str(folder)) is may


def test_a_file_is_not_cleared(dev: Any, tmp_path: Path) -> None:
    """An environment is a folder."""
    (tmp_path / "file").touch()

    assert not dev.environment.may_be_cleared(str(tmp_path / "file"))


def test_an_environment_half_made_is_made_anew(dev: Any) -> None:
    """.venv is ours, also where an interrupted run left no more than a part of it."""
    assert dev.environment.may_be_cleared(str(ROOT / ".venv"))


def test_all_environments_share_what_npm_installs(
    dev: Any, machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one does not install it again, a changed lock file does; and where it failed it is tried again."""
    program(machine / "bin" / "npm")
    calls: list[Any] = []
    ends = [True, False, True]
    environment = dev.environment

    def quiet(*words: str, **more: Any) -> bool:
        calls.append(words)
        return ends[len(calls) - 1]

    monkeypatch.setattr(environment, "quiet", quiet)
    monkeypatch.setattr(environment, "INTEROP", str(tmp_path))
    program(tmp_path / "node_modules" / "mqtt" / "package.json", "{}")
    environment.NPM_STAMP = str(tmp_path / "node_modules" / "stamp.json")
    inputs = ["as locked"]
    environment.npm_inputs = lambda: inputs[0]

    counts = []
    for change in ("as locked", "as locked", "changed", "changed", "changed"):
        inputs[0] = change
        if not environment.npm_ready():
            environment.install_npm()
        counts.append(len(calls))

    assert counts == [1, 1, 2, 3, 3]


# Packages of the system


@pytest.fixture
def bare(dev: Any, machine: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What .ci/packages.py says on a system with apt-get and nothing else."""
    program(machine / "bin" / "apt-get")
    for name in ("JAVA_HOME", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    packages = dev.packages
    packages.CA_BUNDLE = str(machine / "none")
    packages.found = lambda name: None
    packages.can_make_venv = lambda: False
    return packages


ALWAYS = {
    f"{HERE}-venv", "ca-certificates", "haproxy", "maven", "mosquitto", "mosquitto-clients", "nodejs", "npm",
    "openssl", "rabbitmq-server", "redis-server",
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

    assert set(bare.missing("download", "venv", "test")) == ALWAYS | more


def test_a_broker_needs_next_to_nothing(bare: Any) -> None:
    """What makes the environment, and what lets pip know whom it speaks to."""
    assert set(bare.missing("download", "venv")) == {f"{HERE}-venv", "ca-certificates"}


def test_a_python_that_can_make_environments_needs_no_package(bare: Any) -> None:
    """Only Debian keeps that part of Python apart."""
    bare.can_make_venv = lambda: True

    assert set(bare.missing("download", "venv")) == {"ca-certificates"}


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

    assert dev.packages.java_version() == version


def test_compiling_asks_for_the_headers_of_this_python(dev: Any, machine: Path, monkeypatch: Any) -> None:
    """And for a compiler, where there is none."""
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(machine))
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: "x86_64-linux-gnu-gcc -pthread")

    assert {"gcc", f"{HERE}-dev"} <= set(dev.packages.missing("compile"))


# Installing


@pytest.fixture
def installing(dev: Any, machine: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """.ci/environment.py, whose steps only note that they were taken, in ``taken``."""
    environment = dev.environment
    environment.taken = []
    monkeypatch.delenv("KINMQTT_PURE", raising=False)
    for name in ("make_venv", "install_python", "install_npm", "compile_in_place"):
        monkeypatch.setattr(environment, name, lambda *words, name=name: environment.taken.append((name, *words)))
    monkeypatch.setattr(environment.packages, "missing", lambda *uses: {})
    monkeypatch.setattr(environment, "venv_state", lambda level: "make")
    monkeypatch.setattr(environment, "compiled", lambda: False)
    monkeypatch.setattr(environment, "npm_ready", lambda: False)
    return environment


def test_a_broker_needs_neither_spark_nor_npm(installing: Any) -> None:
    """`dev.py run` takes its distributions and compiles them, and no more."""
    installing.install("run")

    assert installing.taken == [("make_venv",), ("install_python", "run"), ("compile_in_place",)]


def test_requirements_of_a_broker_leave_out_what_tests_need() -> None:
    """requirements.txt names neither Spark nor a test tool, and the other file has them all."""
    run = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    dev = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")

    assert not re.search(r"pytest|pipeline|spark|tox|ruff|sphinx", run)
    assert "-r requirements.txt" in dev and "pipeline,report]" in dev and "pytest" in dev


def test_steps_say_how_many_they_are(installing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each one its number and, once it is done, its seconds."""
    installing.install("dev")

    said = capsys.readouterr().out
    numbers = [line.split()[1] for line in said.splitlines() if "[" in line]
    assert numbers == [f"[{number}/4]" for number in (1, 1, 2, 2, 3, 3, 4, 4)]
    assert re.search(r"\[4/4\] took \d+\.\d s", said)


@pytest.mark.parametrize("how", ["--plain", "KINMQTT_PURE", "compiled already"])
def test_compiling_is_left_out(installing: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not wanted, and where what is there is of the same sources."""
    monkeypatch.setattr(installing, "venv_state", lambda level: "ready")
    if how == "KINMQTT_PURE":
        monkeypatch.setenv("KINMQTT_PURE", "1")
    if how == "compiled already":
        monkeypatch.setattr(installing, "compiled", lambda: True)

    installing.install("run", plain=how == "--plain")

    assert installing.taken == []


@pytest.mark.parametrize("value", ["", "0"])
def test_kinmqtt_pure_asks_for_plain_python_as_the_broker_understands_it(
    installing: Any, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither 0 nor nothing does."""
    monkeypatch.setenv("KINMQTT_PURE", value)

    installing.install("run")

    assert ("compile_in_place",) in installing.taken


def test_without_a_compiler_a_line_says_how_to_get_one(
    installing: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker runs all the same, as plain Python."""
    monkeypatch.setattr(
        installing.packages, "missing", lambda *uses: {"gcc": "compiles"} if "compile" in uses else {}
    )

    installing.install("run")

    assert ("compile_in_place",) not in installing.taken
    [line] = [line for line in capsys.readouterr().out.splitlines() if "plain Python" in line]
    assert "apt-install gcc" in line


def test_without_arguments_every_test_runs_plain_and_then_compiled(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them as plain Python; then those of the compiled modules, for which the wheel of the first is taken."""
    ran: list[tuple[list[str], str]] = []
    statuses = [1, 0, 1]
    monkeypatch.setattr(dev.environment, "install", lambda *words, **more: None)
    monkeypatch.setattr(dev.environment, "npm_ready", lambda: True)
    monkeypatch.setattr(dev.packages, "missing", lambda *uses: {})

    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def compile_path(words: list[str]) -> int:
        ran.append(([], "compile"))
        return 0

    monkeypatch.setattr(dev, "compile_path", compile_path)
    monkeypatch.setattr(dev.environment, "take_compiled", lambda folder: ran.append(([], str(os.listdir(folder)))))

    def part(command: list[str], **variables: str) -> int:
        ran.append((command[3:], variables["KINMQTT_PURE"]))
        if "KINMQTT_WHEEL" in variables:
            (Path(variables["KINMQTT_WHEEL"]) / "core.whl").touch()
        return statuses.pop(0)

    monkeypatch.setattr(dev, "part", part)

    assert dev.test([]) == 1
    (everything, plain), (_, taken), (_, between), (modules, compiled) = ran
    assert (plain, taken, between, compiled) == ("1", "['core.whl']", "compile", "0")
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert not [word for word in everything if "tests" in word] and "--durations=20" in everything
    assert "core/tests/broker" in modules and "-n" in everything and "-n" in modules
    ran.clear()
    assert dev.test(["--plain"]) == 1
    assert ran == [(everything, "1")]
    assert [path for path in dev.COMPILED_TESTS if not (ROOT / path).exists()] == []


def test_what_is_compiled_in_a_wheel_is_put_beside_its_sources(
    dev: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules and the note of what they are; the sources stay as they are."""
    monkeypatch.setattr(dev.environment, "ROOT", str(tmp_path))
    (tmp_path / "wheels").mkdir()
    dev.environment.take_compiled(str(tmp_path / "wheels"))
    with zipfile.ZipFile(tmp_path / "wheels" / "core.whl", "w") as wheel:
        for name in ("kinmqtt__mypyc.so", "kinmqtt/broker.so", "kinmqtt/broker.py", "kinmqtt/compiled.sha256"):
            wheel.writestr(name, name)

    dev.environment.take_compiled(str(tmp_path / "wheels"))

    source = tmp_path / "core" / "src"
    there = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert there == {"kinmqtt__mypyc.so", "kinmqtt/broker.so", "kinmqtt/compiled.sha256"}


def test_an_old_python_gets_a_sentence() -> None:
    """It is said before anything of .ci/ is imported, which an old interpreter could not read."""
    old = "import sys; sys.version_info = (3, 6, 15); import runpy; runpy.run_path('dev.py')"

    done = subprocess.run([sys.executable, "-c", old], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.startswith("kinmqtt needs Python 3.11 or newer; this is ")


def test_help_names_every_command(dev: Any) -> None:
    """Each at the beginning of a line."""
    named = re.findall(r"^  ([a-z]+) ", dev.HELP, re.MULTILINE)

    assert sorted(named) == sorted([*dev.COMMANDS, "help"])


@pytest.mark.parametrize("text", ["", "null", "1", "[1]", '{"python"'])
def test_a_stamp_that_is_damaged_counts_as_none(dev: Any, tmp_path: Path, text: str) -> None:
    """The next command installs anew."""
    stamp = tmp_path / "stamp.json"
    stamp.write_text(text, encoding="utf-8")

    assert dev.environment.read_stamp(str(stamp)) == {}


def test_an_empty_name_of_a_compiler_is_passed_over(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CC=" " is what some shells leave behind."""
    monkeypatch.setenv("CC", " ")

    assert dev.packages.compiler().strip()
