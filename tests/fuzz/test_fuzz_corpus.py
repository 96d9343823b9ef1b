"""Every input that a fuzzer has kept, sent again: nothing comes of it but packets and remote errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from root_harness.fuzz_targets import targets

CORPUS = Path(__file__).with_name("corpus")
TARGETS = targets()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_the_fuzzer_found(name: str) -> None:
    """The corpus of a target is there, and holds no surprise."""
    inputs = [bytes.fromhex(line) for line in (CORPUS / f"{name}.txt").read_text(encoding="ascii").split()]
    assert inputs

    for data in inputs:
        TARGETS[name](data)
