"""Each promise of docs/bridge.md has a test that names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

NUMBER = re.compile(r"\b(?:B[1-9][0-9]?|E[12])\b")


def promised() -> list[str]:
    """Return the numbers of the table of promises."""
    return re.findall(r"^\| ([BE][0-9]+) \|", (ROOT / "docs" / "bridge.md").read_text(), re.MULTILINE)


def named() -> Iterator[str]:
    """Yield the numbers that the docstrings of tests begin with."""
    folders = (ROOT / "tests", ROOT / "core" / "tests", ROOT / "spi" / "tests", *ROOT.glob("plugins/*/tests"))
    for path in (path for folder in folders for path in folder.rglob("test_*.py")):
        text = path.read_text()
        if NUMBER.search(text):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    yield from NUMBER.findall((ast.get_docstring(node) or "").partition(":")[0])


def test_each_promise_of_bridges_has_a_test() -> None:
    """Its number stands at the beginning of the test's docstring, before a colon."""
    numbers = promised()

    assert numbers == [*(f"B{number}" for number in range(1, 16)), "E1", "E2"]
    assert set(numbers) - set(named()) == set()
