"""The rules file: checked in a thread, and read again when a change is complete."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from kinmqtt_sentinel_limiter._settings import Rules
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.files import FileWatch
from kinmqtt_spi.settings import Document, parse


def read_rules(path: Path, taken: Iterable[str] = ()) -> Rules:
    """Read the rules in a file; raises ``SettingsError`` with the location of each error.

    ``taken`` are the names of the rules in the settings, which the file must not use.
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
class LoadResult:
    """The result of reading a changed file: rules or problems."""

    rules: Rules | None
    problems: tuple[str, ...] = ()


class RulesFile:
    """One rules file; ``look`` runs in a thread and stores its result for ``take_result``."""

    def __init__(self, path: Path, taken: Iterable[str]) -> None:
        """``taken`` are the names of the rules in the settings."""
        self.path = path
        names = tuple(taken)
        self._watch = FileWatch([path], lambda: read_rules(path, names))
        self._result: LoadResult | None = None
        self.looking = False

    def read(self) -> Rules:
        """Read the rules, even if the file has not changed; raises ``SettingsError`` if it is invalid."""
        return self._watch.read_now()

    def look(self) -> None:
        """Read the file if it has changed and the change is complete. Never raises: no one awaits the result."""
        try:
            rules = self._watch.look()
            if rules is not None:
                self._result = LoadResult(rules)
        except SettingsError as error:
            self._result = LoadResult(None, error.problems)
        except Exception as error:  # the old rules stay in force, and the error must be reported
            self._result = LoadResult(None, (f"{self.path}: {error}",))
        finally:
            self.looking = False

    def take_result(self) -> LoadResult | None:
        """The result since the last call; each result is returned once."""
        found, self._result = self._result, None
        return found
