"""The environment is what its name says: without this a combination would test something else, and pass."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from itertools import combinations
from pathlib import Path

import pytest
from combination import OLDEST, PLUGINS, ROOT, Combination, Installed, oldest_releases, problems

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
    import kinmqtt_spi

    assert kinmqtt_spi.__file__ is not None
    places = (ROOT, Path(sys.prefix))
    assert any(Path(kinmqtt_spi.__file__).is_relative_to(place) for place in places)


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
                promised[name.lower()] = version

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


# tox


@pytest.fixture(scope="module")
def listed() -> dict[str, str]:
    """The environments that `tox list` tells of, each with its description."""
    pytest.importorskip("tox", reason="combinations are listed where tox is installed")
    done = subprocess.run([sys.executable, "-m", "tox", "list"], cwd=ROOT, capture_output=True, text=True, check=True)
    pairs = (line.partition(" -> ") for line in done.stdout.splitlines() if " -> " in line)
    return {name.strip(): text.strip() for name, _, text in pairs}


def test_tox_has_every_distribution_alone_every_pair_and_the_whole(listed: dict[str, str]) -> None:
    """A plugin that is added stands in all of them."""
    expected = {"spi", "core", "oldest", "newest", "wheels", *(f"alone-{plugin}" for plugin in PLUGINS)}
    for count in (1, 2, len(PLUGINS)):
        for chosen in combinations(PLUGINS, count):
            expected |= {"-".join((python, *chosen)) for python in ("py311", "py312", "py313")}

    assert expected - set(listed) == set()


def test_tox_explains_each(listed: dict[str, str]) -> None:
    """`tox list` is a document: no environment without a sentence."""
    unexplained = [name for name, text in listed.items() if len(text) < 10 or text == "[no description]"]

    assert unexplained == []


def test_tox_names_no_combination_that_is_none(listed: dict[str, str]) -> None:
    """Every part of a combination's name means something."""
    for name in listed:
        if "-" in name or name in ("oldest", "newest"):
            Combination.named(name)
