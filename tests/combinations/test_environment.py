"""The environment is what its name says: without this a combination would test something else, and pass."""

from __future__ import annotations

import importlib.util
import json
import os
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from root_harness.combination import OLDEST, ROOT, Combination, Installed, oldest_releases, problems, strangers

NAME = os.environ.get("KINMQTT_COMBINATION", "all")
"""The tox environment; outside of tox, everything is installed."""

SOME = ("auth_file", "guard", "limiter")
HERE = Installed((3, 11), frozenset({"guard", "limiter"}), {"kinmqtt-core": "0.1", "attrs": "23.2.0"})


def test_the_environment_is_what_its_name_says() -> None:
    """Python, plugins, core and, where the name asks for the oldest releases, those."""
    found = problems(Combination.named(NAME), Installed.here(), oldest_releases(OLDEST.read_text()))

    assert found == []


def test_ours_come_from_this_checkout_or_its_wheels() -> None:
    """A release of ours from elsewhere would be tested in place of what is here."""
    wheels = os.environ.get("KINMQTT_WHEELS")

    found = strangers(metadata.distributions(), None if wheels is None else Path(wheels))

    assert found == []


def test_the_oldest_releases_are_those_of_the_metadata() -> None:
    """What a distribution promises to work with is what the environment `oldest` has."""
    pins = oldest_releases(OLDEST.read_text())
    promised: dict[str, str] = {}
    for file in [
        ROOT / "spi" / "pyproject.toml",
        ROOT / "core" / "pyproject.toml",
        *ROOT.glob("plugins/*/pyproject.toml"),
    ]:
        for need in tomllib.loads(file.read_text())["project"]["dependencies"]:
            name, _, version = need.partition(">=")
            if version:
                promised[name.lower()] = version.partition(",")[0]

    assert set(pins) == set(promised)
    assert all((f"{pins[name]}.").startswith(f"{version}.") for name, version in promised.items())


# That the check bites


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("py311-guard-limiter", []),
        ("guard-limiter", []),
        ("py312-guard-limiter", ["this is Python 3.11"]),
        ("py311-guard", ["plugin limiter is installed"]),
        ("py311-auth_file-guard-limiter", ["plugin auth_file is missing"]),
        ("all", ["plugin auth_file is missing"]),
        ("alone-guard-limiter", ["the core is installed"]),
        ("oldest", ["plugin auth_file is missing", "attrs is 23.2.0, not 23.1.0"]),
    ],
)
def test_what_is_not_as_named_is_found(name: str, sentences: list[str]) -> None:
    """One sentence for each difference."""
    assert problems(Combination.named(name, SOME), HERE, {"attrs": "23.1.0", "absent": "1"}) == sentences


def test_another_store_is_found() -> None:
    """A run over Redis that is over memory would pass by testing what has been tested already."""
    memory = Installed((3, 11), frozenset(), {"kinmqtt-core": "0.1"})
    redis = Installed((3, 11), frozenset({"redis_session"}), {"kinmqtt-core": "0.1"}, "redis")
    known = ("redis_session",)

    assert problems(Combination.named("py311-memory", known), memory, {}) == []
    assert problems(Combination.named("py311-redis", known), redis, {}) == []
    assert problems(Combination.named("py311-memory", known), redis, {}) == [
        "plugin redis_session is installed",
        "the brokers of tests run over redis",
    ]
    assert problems(Combination.named("py311-redis", known), memory, {}) == [
        "plugin redis_session is missing",
        "the brokers of tests run over memory",
    ]


def test_the_house_is_over_the_store_that_is_named() -> None:
    """What the variable says is what a broker of the tests has for its sessions, queues and retained messages."""
    if importlib.util.find_spec("kinmqtt") is None:
        pytest.skip("there is no broker here: the SPI stands alone")
    from core_harness.house import House

    stores = House().broker.runtime.stores
    ours = [getattr(each, "_service", each) for each in (stores.session, stores.queue, stores.retain)]

    over = "kinmqtt_redis_session" if Installed.here().store == "redis" else "kinmqtt_spi.memory"
    assert all(type(each).__module__.startswith(over) for each in ours), ours


def test_a_core_that_is_missing_is_found() -> None:
    """A combination without a broker would pass by testing nothing."""
    there = Installed((3, 11), frozenset({"guard"}))

    assert problems(Combination.named("py311-guard", SOME), there, {}) == ["the core is missing"]


def test_an_unknown_part_of_a_name_is_refused() -> None:
    """A plugin that was renamed must not be left out quietly."""
    with pytest.raises(ValueError, match="'gard' is neither a plugin"):
        Combination.named("py311-gard", SOME)


def test_pins_are_read() -> None:
    """Comments and empty lines are none."""
    assert oldest_releases("# why\nTwisted==24.7.0\n\nattrs==23.2.0\n") == {"twisted": "24.7.0", "attrs": "23.2.0"}


class Files(metadata.Distribution):
    """What is installed of a distribution, by its files."""

    def __init__(self, place: Path, **files: str) -> None:
        self._place = place
        self._files = {"METADATA": "Name: kinmqtt-spi\nVersion: 0.1.0\n", **files}

    def read_text(self, filename: str) -> str | None:
        """A file's text."""
        return self._files.get(filename.replace(".", "_") if filename == "direct_url.json" else filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        """Where one is."""
        return self._place / path


def editable(folder: Path, *, really: bool = True) -> str:
    """What pip writes of where a distribution came from."""
    return json.dumps({"url": folder.as_uri(), "dir_info": {"editable": really}})


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with the SPI's wheel."""
    with zipfile.ZipFile(tmp_path / "kinmqtt_spi-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            "kinmqtt_spi-0.1.0.dist-info/RECORD", "a.py,sha256=x,1\nkinmqtt_spi-0.1.0.dist-info/RECORD,,\n"
        )
    return tmp_path


def test_what_is_editable_must_be_this_checkouts(tmp_path: Path) -> None:
    """A release from an index has no place of its own to name, and another checkout is another."""
    site = tmp_path / "site-packages"
    there = {
        "here": Files(site, direct_url_json=editable(ROOT / "spi")),
        "its source": Files(ROOT / "spi" / "src"),
        "released": Files(site),
        "elsewhere": Files(site, direct_url_json=editable(tmp_path)),
        "a copy": Files(site, direct_url_json=editable(ROOT / "spi", really=False)),
        "another folder": Files(site, direct_url_json=editable(ROOT / "core")),
        "unknown": Files(site, METADATA="Name: kinmqtt-other\nVersion: 1\n"),
        "foreign": Files(site, METADATA="Name: attrs\nVersion: 1\n"),
    }

    found = {name: bool(strangers([each], None)) for name, each in there.items()}

    assert [name for name, strange in found.items() if not strange] == ["here", "its source", "foreign"]


def test_what_is_from_a_wheel_must_be_the_wheels_that_were_built(wheels: Path) -> None:
    """Every file of it, as its record has them; what pip adds beside is no matter."""
    same = "a.py,sha256=x,1\nkinmqtt_spi-0.1.0.dist-info/INSTALLER,sha256=y,4\n"
    site = wheels / "site-packages"
    there = {
        "same": Files(site, RECORD=same),
        "other content": Files(site, RECORD=same.replace("x", "z")),
        "other version": Files(site, RECORD=same, METADATA="Name: kinmqtt-spi\nVersion: 0.1.1\n"),
        "no record": Files(site),
        "editable": Files(site, RECORD=same, direct_url_json=editable(ROOT / "spi")),
    }

    found = {name: bool(strangers([each], wheels)) for name, each in there.items()}

    assert [name for name, strange in found.items() if not strange] == ["same"]
