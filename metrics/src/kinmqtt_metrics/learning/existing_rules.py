"""A file of rules that is there: read, replaced as a whole, its rules switched on and off."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from kinmqtt_metrics import formatting
from kinmqtt_metrics.durable import replace_text
from kinmqtt_metrics.errors import LearningError
from kinmqtt_metrics.learning.rules_file import FIRST_WORDS


def write_whole(path: Path, text: str) -> None:
    """Beside it and renamed: the limiter watches the file. Keeps the file's rights. Raises :class:`LearningError`."""
    try:
        replace_text(path, text)
    except OSError as error:
        raise LearningError(f"{path} can't be written: {error.strerror or error}") from error


def check_replaceable(path: Path) -> None:
    """Raises :class:`LearningError` where a file holds what a person would miss: rules that are on, or another's."""
    if not path.exists():
        return
    text = read(path)
    if not text.startswith(FIRST_WORDS):
        raise LearningError(f"{path} was not learned, so it is not replaced: give --out another name")
    on = [rule["name"] for rules in parsed(path, text).values() for rule in rules if not rule.get("shadow", False)]
    if on:
        raise LearningError(
            f"{path} has rules that are switched on ({formatting.listed(on, 3)}), so it is not replaced: learn "
            "into another file and compare, or disable them (--disable)"
        )


def read(path: Path) -> str:
    """The text with its ends of lines as they are. Raises :class:`LearningError`."""
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise LearningError(f"{path} can't be read: {why}") from error


def parsed(path: Path, text: str, real: Callable[[str], Any] = float) -> dict[str, list[dict[str, Any]]]:
    """Rules by their tables, each with a name of its own; ``real`` reads numbers. Raises :class:`LearningError`."""
    try:
        found = tomllib.loads(text, parse_float=real)
    except tomllib.TOMLDecodeError as error:
        raise LearningError(f"{path} is not TOML: {error}") from error
    except RecursionError:
        raise LearningError(f"{path} is nested too deeply for a file of rules") from None
    except ValueError as error:
        raise LearningError(f"{path} has an invalid number or time: {error}") from error
    names: set[str] = set()
    for table, rules in found.items():
        if table not in ("flow", "degrade", "system", "param") or not isinstance(rules, list):
            raise LearningError(f"{path}: {table} is not an array of rules; write [[flow]], [[param]] and so on")
        for number, rule in enumerate(rules):
            where = f"{path}: {table}[{number}]"
            if not isinstance(rule, dict) or not isinstance(rule.get("name"), str):
                raise LearningError(f"{where} has no name, or it is not a string")
            if rule["name"] in names:
                raise LearningError(f"{where}: another rule is called {rule['name']!r} as well: give it another name")
            names.add(rule["name"])
            if not isinstance(rule.get("shadow", False), bool):
                raise LearningError(
                    f"{where} ({rule['name']}): shadow must be true or false, and is {rule['shadow']!r}"
                )
    return found


_HEAD: Final = re.compile(r"\s*\[\[\s*(\w+)\s*\]\]\s*(#.*)?$")
_OTHER_HEAD: Final = re.compile(r"\s*\[")
_SHADOW: Final = re.compile(r"(\s*shadow\s*=\s*)(true|false)\b")


def switched(path: Path, text: str, shadow: bool, names: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The file with ``shadow`` of these rules, or of all, set; and the rules that this changed. Comments stay.

    Raises :class:`LearningError`.
    """
    # Numbers stay as they are written: what is compared below must be equal to itself, which nan is not.
    before = parsed(path, text, str)
    there = [rule["name"] for rules in before.values() for rule in rules]
    if not there:
        raise LearningError(f"{path} has no rules: kinmqtt-metrics rules --out writes some")
    missing = [name for name in names if name not in there]
    if missing:
        raise LearningError(f"{path} has no rule {missing[0]!r}; it has {formatting.listed(there, 8)}")
    wanted = {
        (table, number): rule["name"]
        for table, rules in before.items()
        for number, rule in enumerate(rules)
        if bool(rule.get("shadow", False)) != shadow and (not names or rule["name"] in names)
    }
    changed = _with_shadow(text, shadow, before, set(wanted))
    expected = {
        table: [{**rule, "shadow": shadow} if (table, n) in wanted else rule for n, rule in enumerate(rules)]
        for table, rules in before.items()
    }
    if parsed(path, changed, str) != expected:
        raise LearningError(
            f"{path} is written in a way that this command does not change safely: edit shadow by hand"
        )
    return changed, list(wanted.values())


def _with_shadow(
    text: str, shadow: bool, before: dict[str, list[dict[str, Any]]], wanted: set[tuple[str, int]]
) -> str:
    """Returns the text with ``shadow`` set in the rules with these tables and numbers; comments stay."""
    counts: dict[str, int] = {}
    current: tuple[str, int] | None = None
    done: set[tuple[str, int]] = set()
    out: list[str] = []
    for line in text.split("\n"):
        match = _HEAD.match(line)
        if match is not None:
            current = (match[1], counts.get(match[1], 0))
            counts[match[1]] = current[1] + 1
            out.append(line)
            if current in wanted and "shadow" not in before[current[0]][current[1]]:
                ending = "\r" if line.endswith("\r") else ""
                out.append(f"shadow = {'true' if shadow else 'false'}{ending}")
                done.add(current)
            continue
        if _OTHER_HEAD.match(line):
            current = None
        if current in wanted and current not in done and _SHADOW.match(line):
            assert current is not None
            line = _SHADOW.sub(lambda found: f"{found[1]}{'true' if shadow else 'false'}", line, count=1)
            done.add(current)
        out.append(line)
    return "\n".join(out)
