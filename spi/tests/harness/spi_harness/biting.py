"""Runs what should catch it over each deliberately broken double, and tells what it said.

A module ``broken_<family>.py``, or several for a long suite, has one class for each double: a suite's subclass named
after the behaviour that the double breaks, as ``TestSESSION_02_EpochsStandStill``. pytest collects none of these by
itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import Phase, settings

from kinmqtt_spi.testing.behaviours import behaviours_of

_NAME = re.compile(r"Test([A-Z]+)_(\d{2})_\w+")


class Verdicts:
    """What pytest reported, by class and test."""

    def __init__(self) -> None:
        self.failed: dict[str, dict[str, str]] = defaultdict(dict)
        """By class: the tests that failed, and the failure's text."""
        self.errors: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Of each double's tests keep those of the behaviour that it breaks."""
        items[:] = [item for item in items if item.name.startswith(_start(item.cls.__name__))]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Take a report in."""
        _, class_name, test = report.nodeid.split("::")
        if report.failed:
            if report.when == "call":
                self.failed[class_name][test] = str(report.longreprtext)
            else:
                self.errors[report.nodeid] = str(report.longreprtext)

    def pytest_collectreport(self, report: Any) -> None:
        """A module that can't be collected has no verdicts."""
        if report.failed:
            self.errors[report.nodeid] = str(report.longrepr)


def _start(double: str) -> str:
    match = _NAME.fullmatch(double)
    assert match, f"{double} is not named after a behaviour"
    return f"test_{match[1].lower()}_{match[2]}_"


def doubles(module: ModuleType) -> dict[str, str]:
    """The classes of a module of doubles, with the behaviour that each breaks."""
    found = {}
    for name in vars(module):
        match = _NAME.fullmatch(name)
        if match:
            found[name] = f"{match[1]}-{match[2]}"
    return found


def run(module: ModuleType) -> Verdicts:
    """Run over every double the tests of the behaviour that it breaks."""
    verdicts = Verdicts()
    assert module.__file__ is not None
    options = ["-p", "no:cacheprovider", "-p", "no:terminal"]
    options += ["--import-mode=importlib", "-c", "/dev/null", "--rootdir", str(Path(module.__file__).parent)]
    profile = settings.get_current_profile_name()
    settings.register_profile("biting", phases=[Phase.generate])  # Nobody reads the smallest example.
    settings.load_profile("biting")
    try:
        status = pytest.main([*options, module.__file__], plugins=[verdicts])
    finally:
        settings.load_profile(profile)
    assert status == pytest.ExitCode.TESTS_FAILED, f"{module.__name__}: {status!r}"
    return verdicts


def unbroken(suite: type[Any], modules: Iterable[ModuleType]) -> set[str]:
    """The behaviours of a suite that no double of these modules breaks."""
    broken = {number for module in modules for number in doubles(module).values()}
    return {each.number for each in behaviours_of(suite)} - broken


def biting_tests(suites: dict[type[Any], tuple[ModuleType, ...]]) -> Any:
    """The parameters of a test of all doubles: module, class and behaviour."""
    return [
        pytest.param(module, name, number, id=name)
        for modules in suites.values()
        for module in modules
        for name, number in doubles(module).items()
    ]
