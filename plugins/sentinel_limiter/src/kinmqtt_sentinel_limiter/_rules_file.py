"""A rules file of its own: looked at in a thread, read again when it has changed and that has settled."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from kinmqtt_sentinel_limiter._settings import Rules
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.files import FileWatch
from kinmqtt_spi.settings import Document, parse


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
        """``taken`` has the names of the rules in the settings."""
        self.path = path
        names = tuple(taken)
        self._watch = FileWatch([path], lambda: read_rules(path, names))
        self._found: Found | None = None
        self.looking = False

    def read(self) -> Rules:
        """The rules, whether the file has changed or not; ``SettingsError`` says what is wrong."""
        return self._watch.read_now()

    def look(self) -> None:
        """Read the file if it has changed and that has settled. Never raises: nobody waits for the answer."""
        try:
            rules = self._watch.look()
            if rules is not None:
                self._found = Found(rules)
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
