"""What the distributions promise: in their metadata, as installed here, and as built wheels."""

from __future__ import annotations

import ast
import configparser
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import twisted
import twisted.plugins
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins

from kinmqtt.cli.new_plugin import OURS
from root_harness.combination import has_a_plugin

ROOT = Path(__file__).resolve().parents[1]
BESIDE_CORE = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
PLUGIN_FOLDERS = [folder for folder in BESIDE_CORE if has_a_plugin(folder)]
FOLDERS = [ROOT / "spi", ROOT / "core", *BESIDE_CORE]
FOLDERS += [path.parent for path in ROOT.glob("metrics/pyproject.toml")]
IDS = [folder.relative_to(ROOT).as_posix() for folder in FOLDERS]
SUPPORTED = runpy.run_path(str(ROOT / "dev.py"))["PYTHONS"]
PYTHONS = [f"Programming Language :: Python :: {major}.{minor}" for major, minor in SUPPORTED]
each_distribution = pytest.mark.parametrize("folder", FOLDERS, ids=IDS)


def project(folder: Path) -> dict[str, Any]:
    """Returns a distribution's [project] table."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def umbrella() -> configparser.ConfigParser:
    """Returns the umbrella distribution's setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def extras() -> dict[str, list[str]]:
    """Returns what each of the umbrella's extras installs."""
    return {name: lines.split() for name, lines in umbrella()["options.extras_require"].items()}


def import_name(folder: Path) -> str:
    """Returns the package of a distribution: kinmqtt-spi has kinmqtt_spi, and core has kinmqtt itself."""
    name = str(project(folder)["name"])
    return "kinmqtt" if name == "kinmqtt-core" else name.replace("-", "_")


# Metadata


def test_each_extra_names_one_plugin_folder() -> None:
    """The extra `name` installs the distribution in plugins/name, or metrics; every plugin has its extra."""
    chosen = [*PLUGIN_FOLDERS, ROOT / "metrics"]
    expected = {folder.name: [f"{project(folder)['name']}==0.1.*"] for folder in chosen}

    assert {name: needs for name, needs in extras().items() if name != "all"} == expected


def test_extra_all_is_all_the_others() -> None:
    """The extra `all` leaves out no plugin."""
    others = [need for name, needs in extras().items() if name != "all" for need in needs]

    assert sorted(extras()["all"]) == sorted(others)


def test_the_developer_install_has_every_distribution() -> None:
    """A distribution that requirements.txt forgets would be missing from every test run."""
    assert "-r requirements.txt" in (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    editable = {(ROOT / path).resolve() for path in re.findall(r"^-e ([^\s\[]+)", text, re.MULTILINE)}

    assert editable == {ROOT, *FOLDERS}


@each_distribution
def test_a_distribution_is_whole(folder: Path) -> None:
    """Each has a readme, tests, a typed package of its own and the same oldest Python."""
    package = folder / "src" / import_name(folder)

    assert (folder / "README.md").is_file()
    assert list((folder / "tests").rglob("test_*.py"))
    assert (package / "__init__.py").is_file()
    assert (package / "py.typed").is_file()
    assert project(folder)["requires-python"] == umbrella()["options"]["python_requires"]


@each_distribution
def test_a_distribution_names_the_pythons_that_it_is_tested_on(folder: Path) -> None:
    """Its classifiers name the versions that dev.py and tox know, and no others."""
    named = [name for name in project(folder)["classifiers"] if name.startswith("Programming Language")]

    assert named == PYTHONS


def test_the_umbrella_names_the_pythons_that_it_is_tested_on() -> None:
    """As its parts do, the oldest of them as what it requires."""
    oldest, *_ = (line.rpartition(" ")[2] for line in PYTHONS)

    assert umbrella()["metadata"]["classifiers"].split("\n")[1:] == PYTHONS
    assert umbrella()["options"]["python_requires"] == f">={oldest}"


def test_tox_has_an_environment_for_each_python() -> None:
    """Each supported version runs everything together."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    factors = ",".join(line.rpartition(" ")[2].replace(".", "") for line in PYTHONS)

    assert f"testenv:py{{{factors}}}" in tox


@each_distribution
def test_the_tools_know_the_distribution(folder: Path) -> None:
    """Coverage measures each distribution, and tox's environment `wheels` builds it."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")

    assert import_name(folder) in tools["coverage"]["run"]["source_pkgs"]
    assert f"./{folder.relative_to(ROOT).as_posix()}" in tox["testenv:wheels"]["commands_pre"].split()


@each_distribution
def test_plugins_never_need_core(folder: Path) -> None:
    """Only the umbrella needs core; a plugin's own requirements name the SPI."""
    needs = [re.split(r"[^\w-]", need)[0] for need in project(folder).get("dependencies", [])]

    assert not {"kinmqtt", "kinmqtt-core"} & set(needs)


@each_distribution
def test_versions_agree(folder: Path) -> None:
    """All distributions of one checkout have one version, and ask for each other in its series."""
    version = umbrella()["metadata"]["version"]
    series = ".".join(version.split(".")[:2])
    siblings = [need for need in project(folder).get("dependencies", []) if need.startswith("kinmqtt")]

    assert project(folder)["version"] == version
    assert all(need.endswith(f"=={series}.*") for need in siblings)


def test_the_changelog_knows_the_version() -> None:
    """CHANGELOG.md has a section for the version that setup.cfg names."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert f"## [{umbrella()['metadata']['version']}]" in changelog


def test_the_npm_lock_names_no_registry() -> None:
    """MQTT.js comes from whichever registry npm is set up for."""
    lock = (ROOT / "tests" / "interop" / "package-lock.json").read_text(encoding="utf-8")

    assert '"resolved"' not in lock


def test_old_pythons_can_read_the_starter() -> None:
    """An interpreter that is too old must get as far as dev.py's sentence that says so."""
    source = (ROOT / "dev.py").read_text(encoding="utf-8")

    ast.parse(source, feature_version=(3, 6))
    assert "from __future__ import annotations" not in source


# What is installed


@each_distribution
def test_the_distribution_is_installed(folder: Path) -> None:
    """The environment has this checkout's version."""
    assert metadata.version(project(folder)["name"]) == project(folder)["version"]


@each_distribution
def test_entry_points_load(folder: Path) -> None:
    """Each announced plugin can be imported, and a plugin's folder has the plugin's name."""
    points = [
        point
        for point in metadata.distribution(project(folder)["name"]).entry_points
        if point.group == "kinmqtt.plugins"
    ]

    assert all(point.load() is not None for point in points)
    if folder in PLUGIN_FOLDERS:
        assert folder.name in {point.name for point in points}


def test_no_new_plugin_takes_a_name_of_ours() -> None:
    """`kinmqtt new-plugin` knows every distribution of this repository, installed or not."""
    ours = {str(project(folder)["name"]).removeprefix("kinmqtt-").replace("-", "_") for folder in FOLDERS}

    assert ours <= OURS


def test_no_two_plugins_share_a_name() -> None:
    """pluggy would skip the second one in silence."""
    announced = {
        (point.name, point.value)
        for folder in FOLDERS
        for point in metadata.distribution(project(folder)["name"]).entry_points
        if point.group == "kinmqtt.plugins"
    }

    assert [name for name, count in Counter(name for name, _ in announced).items() if count > 1] == []


def test_twistd_finds_the_broker_and_its_own_services() -> None:
    """The dropin adds a command to Twisted's; it hides none."""
    commands: dict[str, Any] = {plugin.tapname: plugin for plugin in getPlugins(IServiceMaker)}

    assert commands["kinmqtt"].module == "kinmqtt.cli.tap"
    assert "web" in commands


def test_the_dropin_keeps_its_name() -> None:
    """Twisted caches dropins by this module-level name: renaming it breaks installations in silence."""
    from twisted.plugins import kinmqtt_plugin

    assert kinmqtt_plugin.kinmqtt.tapname == "kinmqtt"


def test_twisted_is_untouched() -> None:
    """The packages `twisted` and `twisted.plugins` are the ones Twisted's distribution installed."""
    files = metadata.files("Twisted") or []
    installed = {Path(str(file.locate())).resolve() for file in files if file.name == "__init__.py"}

    assert Path(str(twisted.__file__)).resolve() in installed
    assert Path(str(twisted.plugins.__file__)).resolve() in installed


# What is built


MADE = ("*.egg-info", "__pycache__", "build", "dist", "dropin.cache", "*.so", "compiled*.sha256")
"""What nobody wrote that lies in a source folder."""

LEAVE_OUT = shutil.ignore_patterns(*MADE)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """Every distribution's wheel; built from copies, because a build leaves files in its source folder."""
    work = tmp_path_factory.mktemp("wheels")
    sources = [work / "umbrella"]
    sources[0].mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "dev.py"):
        shutil.copy(ROOT / name, sources[0])
    for folder in FOLDERS:
        sources.append(Path(shutil.copytree(folder, work / folder.name, ignore=LEAVE_OUT)))
    build(sources, work / "out", KINMQTT_PURE="1")
    built = (work / "out").glob("*.whl")
    return {path.name.split("-")[0].replace("_", "-"): zipfile.ZipFile(path) for path in built}


def build(sources: list[Path], out: Path, **environment: str) -> str:
    """Build wheels; answers what was said."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--verbose"]
    # The tests' own setuptools builds them, so that nothing is downloaded.
    options: list[str | Path] = ["--no-deps", "--no-build-isolation", "--wheel-dir", out]
    command: list[str | Path] = [*pip, *options, *sources]
    done = subprocess.run(command, capture_output=True, text=True, env={**environment_without_twin(), **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


WHEEL = "KINMQTT_WHEEL"
"""The variable that names the folder into which `dev.py test` wants core's compiled wheel."""


def environment_without_twin() -> dict[str, str]:
    """This process's environment, but that it says nothing of how to build."""
    return {name: value for name, value in os.environ.items() if name != "KINMQTT_PURE"}


def core_and_spi(work: Path) -> Path:
    """A copy of core's sources, beside the SPI's as in a checkout; where that is core's folder."""
    for name in ("spi", "core"):
        shutil.copytree(ROOT / name, work / name, ignore=LEAVE_OUT)
    return work / "core"


@each_distribution
def test_the_wheel_has_the_package_and_nothing_else(folder: Path, wheels: dict[str, zipfile.ZipFile]) -> None:
    """Every file of src/ is in the wheel, with what modules read, and no caches, tests or strays."""
    source = folder / "src"
    written = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    expected = {
        path.as_posix() for path in written if not any(fnmatch(part, made) for part in path.parts for made in MADE)
    }
    assert f"{import_name(folder)}/py.typed" in expected

    names = {name for name in wheels[project(folder)["name"]].namelist() if ".dist-info/" not in name}

    assert names >= expected
    assert {name for name in names - expected if name.endswith((".py", ".pyc")) or "/tests/" in name} == set()


FOR_A_WHEEL = [
    ROOT / "core" / "tests" / "broker" / f"test_{name}.py" for name in ("model", "smoke", "qos", "fanouts")
]
"""Tests that go through most of the compiled modules. All others of these modules run compiled in place."""

THROWS = """
from twisted.internet.defer import Deferred
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl

waits = Deferred()

class Failing:
    @hookimpl
    def start(self, context):
        return waits

broker = BrokerHarness(plugins={"failing": Failing()}, start=False).broker
Deferred.fromCoroutine(broker.start()).addErrback(lambda failure: print(failure.value.__cause__))
waits.errback(ValueError("no cheese"))
"""
"""Has an error come to a coroutine that is compiled, through one that is not, and prints what arrives."""


def test_cores_wheel_is_compiled_where_that_works(tmp_path: Path) -> None:
    """What is installed from it runs the compiled message path, and the source where that is asked for.

    An error that comes through compiled coroutines is the one that was raised, also where warnings are errors.
    """
    build([core_and_spi(tmp_path)], tmp_path / "out")
    [wheel] = (tmp_path / "out").glob("*.whl")
    if WHEEL in os.environ:
        # `dev.py test` goes on with what took minutes to compile.
        shutil.copy(wheel, os.environ[WHEEL])
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")

    # With the SPI that it was compiled against: beside another one the source runs.
    path = os.pathsep.join([str(tmp_path / "installed"), str(tmp_path / "spi" / "src")])
    says = {
        pure: subprocess.run(
            [sys.executable, "-m", "kinmqtt", "version"],
            env={**environment_without_twin(), **pure_environment, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for pure, pure_environment in ((False, {"KINMQTT_PURE": "0"}), (True, {"KINMQTT_PURE": "1"}))
    }

    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, FOR_A_WHEEL)],
        cwd=ROOT,
        env={**environment_without_twin(), "KINMQTT_PURE": "0", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    thrown = subprocess.run(
        [sys.executable, "-W", "error", "-c", THROWS],
        env={**environment_without_twin(), "KINMQTT_PURE": "0", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )

    assert not wheel.name.endswith("-any.whl")
    assert says[False].endswith("; compiled)\n")
    assert says[True].endswith("; plain Python, as KINMQTT_PURE asks)\n")
    assert thrown.stdout == "no cheese\n", thrown.stderr
    assert tests.returncode == 0, tests.stdout


def test_what_is_compiled_throws_as_pythons_own_coroutines_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mypyc's runtime is mended where it has to be, written once, and left alone where it is right by itself."""
    monkeypatch.setattr("setuptools.setup", lambda **more: None)
    core = runpy.run_path(str(ROOT / "core" / "setup.py"))
    old, new, mended = tmp_path / "old", tmp_path / "new", tmp_path / "mended"
    for folder, text in ((old, f"res = {core['THROWS']};"), (new, "res = PyObject_CallOneArg(_m, value);")):
        folder.mkdir()
        (folder / "misc_ops.c").write_text(text)

    [file] = core["mend_runtime"](old, mended)
    first = file.stat().st_mtime_ns
    assert core["mend_runtime"](old, mended) == [file]

    assert file.read_text() == "res = PyObject_CallOneArg(_m, value);"
    assert file.stat().st_mtime_ns == first
    assert core["mend_runtime"](new, mended) == []
    assert list(mended.iterdir()) == []


def test_cores_wheel_is_plain_where_it_can_not_be_compiled(tmp_path: Path) -> None:
    """A compiler that fails is told of, and what comes out is for every machine."""
    core = core_and_spi(tmp_path)
    text = (core / "setup.py").read_text(encoding="utf-8")
    # One module instead of all: what matters is the compiler, and mypyc comes first.
    fewer = re.sub(r"(?<=\nCOMPILED = )\(.+?\n\)", '("kinmqtt/mqtt/qos_state.py",)', text, flags=re.DOTALL)
    assert fewer != text
    (core / "setup.py").write_text(fewer, encoding="utf-8")

    said = build([core], tmp_path / "out", CC="false")

    assert "could not be compiled" in said
    [wheel] = (tmp_path / "out").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as file:
        assert not [name for name in file.namelist() if name.endswith((".so", ".sha256"))]


def test_cores_source_distribution_can_be_built_from(tmp_path: Path) -> None:
    """It has what pyproject.toml names as its build backend, and what that runs."""
    core = core_and_spi(tmp_path)
    make = "import build_backend; build_backend.build_sdist('out')"
    subprocess.run([sys.executable, "-c", make], cwd=core, check=True, capture_output=True)

    [made] = (core / "out").glob("*.tar.gz")
    with tarfile.open(made) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"build_backend.py", "setup.py", "pyproject.toml", "src/kinmqtt/_twin.py"} <= names


def test_cores_wheel_adds_one_file_to_twisted(wheels: dict[str, zipfile.ZipFile]) -> None:
    """An __init__.py would overwrite Twisted's."""
    names = [name for name in wheels["kinmqtt-core"].namelist() if name.startswith("twisted/")]

    assert names == ["twisted/plugins/kinmqtt_plugin.py"]


def test_the_umbrellas_wheel_has_no_code(wheels: dict[str, zipfile.ZipFile]) -> None:
    """dev.py and the folders beside setup.cfg are not packages."""
    assert [name for name in wheels["kinmqtt"].namelist() if ".dist-info/" not in name] == []
