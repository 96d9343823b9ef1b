"""A rules file of its own: looked at in a thread, read again when it has changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

from kinmqtt_sentinel_limiter._settings import Rules
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document, parse

Signature: TypeAlias = tuple[int, int, int] | None
"""What tells one version of a file from another; ``None`` where there is none."""


def read_rules(path: Path, taken: Iterable[str] = ()) -> Rules:
    """The rules in a file; ``SettingsError`` says where in it each mistake is.

    ``taken`` has the names of the rules in the settings, which those in the file must not have.
    """
    document = Document.read(path)
    rules = parse(Rules, document, ())
    problems = []
    seen = set(taken)
    for table in ("flow", "degrade", "system", "param"):
        for number, rule in enumerate(getattr(rules, table)):
            if rule.name in seen:
                line, column = document.value_line((table, number, "name")) or (0, 0)
                problems.append(
                    f'{document.name}:{line}:{column}: {table}[{number}].name: another rule is called "{rule.name}"'
                )
            seen.add(rule.name)
    if problems:
        raise SettingsError(problems)
    return rules


@frozen(slots=True)
class Found:
    """What a changed file says: rules, or what is wrong with it."""

    rules: Rules | None
    problems: tuple[str, ...] = ()


class RulesFile:
    """One file; ``look`` runs in a thread and leaves what it found to be picked up by ``take_found``."""

    def __init__(self, path: Path, taken: Iterable[str]) -> None:
        self.path = path
        self._taken = tuple(taken)
        """The names of the rules in the settings."""
        self._signature: Signature = None
        self._found: Found | None = None
        self.looking = False

    def read(self) -> Rules:
        """The rules, whether the file has changed or not; ``SettingsError`` says what is wrong."""
        self._signature = self._stat()
        return read_rules(self.path, self._taken)

    def look(self) -> None:
        """Read the file if it has changed since the last time. Never raises: nobody waits for the answer."""
        try:
            signature = self._stat()
            if signature != self._signature:
                self._signature = signature
                self._found = Found(read_rules(self.path, self._taken))
        except SettingsError as error:
            self._found = Found(None, error.problems)
        except Exception as error:  # whatever it is, the old rules hold, and somebody must be told
            self._found = Found(None, (f"{self.path}: {error}",))
        finally:
            self.looking = False

    def take_found(self) -> Found | None:
        """What was found since the last time, once."""
        found, self._found = self._found, None
        return found

    def _stat(self) -> Signature:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
