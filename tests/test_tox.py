"""What `tox list` tells: every combination, and what each is. It runs where everything is installed, tox too."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from root_harness.combination import PLUGINS, STORES, Combination

ROOT = Path(__file__).resolve().parents[1]


def tox(*words: str) -> str:
    """What tox answers."""
    done = subprocess.run([sys.executable, "-m", "tox", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def listed() -> dict[str, str]:
    """The environments that `tox list` tells of, each with its description."""
    pairs = (line.partition(" -> ") for line in tox("list").splitlines() if " -> " in line)
    return {name.strip(): text.strip() for name, _, text in pairs}


def test_tox_has_every_distribution_alone_every_pair_and_the_whole(listed: dict[str, str]) -> None:
    """A plugin that is added stands in all of them."""
    expected = {"spi", "core", "oldest", "newest", "wheels", *(f"alone-{plugin}" for plugin in PLUGINS)}
    for count in (1, 2, len(PLUGINS)):
        for chosen in combinations(PLUGINS, count):
            expected |= {"-".join((python, *chosen)) for python in ("py311", "py312", "py313")}

    assert expected - set(listed) == set()


def test_tox_runs_the_same_tests_over_each_store(listed: dict[str, str]) -> None:
    """`memory` and `redis` have one list of tests, so that neither can be left behind."""
    over = {python: {store: f"{python}-{store}" for store in STORES} for python in ("py311", "py312", "py313")}

    assert {name for its in over.values() for name in its.values()} - set(listed) == set()
    commands = tox("config", "-e", ",".join(over["py311"].values()), "-k", "commands").splitlines()
    ran = [line.partition("test_environment.py ")[2] for line in commands if "pytest" in line]
    assert len(ran) == len(STORES) and len(set(ran)) == 1 and len(ran[0].split()) > 10


def test_tox_explains_each(listed: dict[str, str]) -> None:
    """`tox list` is a document: no environment without a sentence."""
    unexplained = [name for name, text in listed.items() if len(text) < 10 or text == "[no description]"]

    assert unexplained == []


def test_tox_names_no_combination_that_is_none(listed: dict[str, str]) -> None:
    """Every part of a combination's name means something."""
    for name in listed:
        if "-" in name or name in ("oldest", "newest"):
            Combination.named(name)
