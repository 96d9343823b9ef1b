"""The table of normative statements: every statement is there once, and every test that it names exists."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLES = Path(__file__).with_name("table")

STATEMENTS = {"v311": 139, "v5": 251}
"""How many numbered statements MQTT 3.1.1 and MQTT 5.0 have."""


def _rows(version: str) -> list[dict[str, Any]]:
    files = sorted(TABLES.glob(f"{version}*.toml"))
    return [row for file in files for row in tomllib.loads(file.read_text(encoding="utf-8"))["statement"]]


@cache
def _tests_in(path: Path) -> frozenset[str]:
    """The names of the tests of a file, those of classes as ``Class::name``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        found |= {f"{cls.name}::{node.name}" for node in cls.body if isinstance(node, ast.FunctionDef)}
    return frozenset(name for name in found if "test_" in name)


@pytest.mark.parametrize("version", ["v311", "v5"])
def test_every_statement_is_there_once(version: str) -> None:
    """None is left out, and none is told of twice."""
    ids = [row["id"] for row in _rows(version)]

    assert len(set(ids)) == len(ids)
    assert len(ids) == STATEMENTS[version]


@pytest.mark.parametrize("version", ["v311", "v5"])
def test_every_statement_says_whom_it_binds(version: str) -> None:
    """And what it asks, in our own words."""
    for row in _rows(version):
        assert row["binds"] in ("client", "server", "both"), row["id"]
        assert row["says"], row["id"]
        assert set(row) <= {"id", "binds", "says", "tests", "unseen"}, row["id"]


@pytest.mark.parametrize("version", ["v311", "v5"])
def test_every_statement_has_a_test_or_says_why_not(version: str) -> None:
    """What binds a server and can be seen on the wire is tested; whatever is named exists."""
    for row in _rows(version):
        tests = row.get("tests", [])
        assert bool(tests) != bool(row.get("unseen")), f"{row['id']} needs tests, or unseen, and not both"
        for test in tests:
            file, _, name = test.partition("::")
            path = ROOT / file
            assert path.is_file(), f"{row['id']}: {file} is not there"
            assert name in _tests_in(path), f"{row['id']}: {file} has no {name}"
