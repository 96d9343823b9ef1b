"""What decides has no clock, no chance and no sockets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PURE = Path(__file__).parents[1] / "src" / "kinmqtt_akka_like_cluster" / "pure"
IMPURE = {"time", "random", "socket", "asyncio", "twisted", "os", "secrets", "threading", "datetime"}
INSIDE = {"kinmqtt_akka_like_cluster.pure", "kinmqtt_spi"}


def imported(source: str) -> Iterator[str]:
    """Yield the names of the modules that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{'.' * node.level}{node.module or ''}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            yield ast.unparse(node.args[0]).strip("'\"")


def impure(source: str) -> list[str]:
    """Return the imports that a pure module may not have: of the machine, or of the rest of the plugin."""
    return [
        name
        for name in imported(source)
        if name.split(".")[0] in IMPURE
        or (
            name.startswith((".", "kinmqtt"))
            and not any(name == each or name.startswith(each + ".") for each in INSIDE)
        )
    ]


@pytest.mark.parametrize("path", sorted(PURE.glob("**/*.py")), ids=lambda path: path.stem)
def test_what_decides_is_pure(path: Path) -> None:
    """No module imports a clock, randomness, sockets or threads, or what has them."""
    assert impure(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path as path",
        "def f():\n    from random import choice",
        "from twisted.internet import reactor",
        "import datetime, math",
        "__import__('socket')",
        "from kinmqtt_akka_like_cluster.net import transport",
        "from ..net import transport",
    ],
)
def test_an_impure_import_is_found(source: str) -> None:
    """The check finds each form of import."""
    assert impure(source) != []
