"""Renders each hook's docs heading from its spec.

`python tests/harness/root_harness/hook_headings.py [MODULE…]` prints them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
HOOKSPECS = ROOT / "spi" / "src" / "kinmqtt_spi" / "hookspecs"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Hook(NamedTuple):
    """One hookspec: the module it is declared in, its name, its docs heading and its docstring."""

    module: str
    name: str
    heading: str
    docstring: str

    @property
    def page(self) -> Path:
        """The docs page that must carry the heading."""
        return ROOT / "docs" / f"{self.module}.md"


def declared_hooks(folder: Path = HOOKSPECS) -> list[Hook]:
    """Returns every hook of the SPI, module by module, in the order of the source."""
    return [
        hook
        for path in sorted(folder.glob("*.py"))
        if path.stem != "__init__"
        for hook in hooks_in(path.read_text(encoding="utf-8"), path.stem)
    ]


def hooks_in(source: str, module: str) -> Iterator[Hook]:
    """Yields the functions and methods of one source text that are decorated with `hookspec`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, FunctionNode) and any(map(is_hookspec, node.decorator_list)):
            yield Hook(module, node.name, heading_of(node), ast.get_docstring(node) or "")


def is_hookspec(decorator: ast.expr) -> bool:
    """Tells whether a decorator is `hookspec`, called or not, by itself or out of a module."""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    name = decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
    return name == "hookspec"


def heading_of(function: FunctionNode) -> str:
    """Writes a spec's signature, without `self`, as the level-3 heading its docs must have."""
    returns = f" -> {annotation(function.returns)}" if function.returns else ""
    return f"### `{function.name}({', '.join(parameters(function.args))}){returns}`"


def parameters(arguments: ast.arguments) -> Iterator[str]:
    """Yields each parameter, evenly spaced; hooks have no positional-only ones."""
    positional = arguments.args[1:] if arguments.args and arguments.args[0].arg == "self" else arguments.args
    without_default = len(positional) - len(arguments.defaults)
    for index, argument in enumerate(positional):
        default = arguments.defaults[index - without_default] if index >= without_default else None
        yield parameter(argument, default)
    if arguments.kwonlyargs:
        yield "*"
    for argument, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield parameter(argument, keyword_default)


def parameter(argument: ast.arg, default: ast.expr | None) -> str:
    """Writes one parameter the way PEP 8 spaces it."""
    text = argument.arg
    if argument.annotation:
        text += f": {annotation(argument.annotation)}"
    if default is not None:
        text += f" = {ast.unparse(default)}" if argument.annotation else f"={ast.unparse(default)}"
    return text


def annotation(node: ast.expr) -> str:
    """Writes an annotation without the quotes that only postpone its evaluation."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node)


def main(modules: list[str]) -> None:
    """Prints the headings of the named modules, or of all."""
    shown = ""
    for hook in declared_hooks():
        if modules and hook.module not in modules:
            continue
        if hook.module != shown:
            print(f"\n{hook.page.relative_to(ROOT)}")
            shown = hook.module
        print(hook.heading)


if __name__ == "__main__":
    main(sys.argv[1:])
