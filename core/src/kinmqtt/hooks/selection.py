"""Chooses among the plugins found by the settings' allow-list, block-list and order."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from kinmqtt.hooks.discovery import Candidate
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.settings import did_you_mean


@frozen(slots=True)
class Selection:
    """What the settings and the command line say about plugins."""

    order: tuple[str, ...] = ()
    """Run these first, in this order; the others follow by name, the built-ins last."""
    only: tuple[str, ...] | None = None
    """Use only these of the installed plugins. Built-ins are not affected."""
    disabled: frozenset[str] = frozenset()
    """Use none of these, built-ins included."""
    services: dict[str, str] = field(factory=dict)
    """Exclusive family to the plugin that serves it."""
    sections: frozenset[str] = frozenset()
    """Plugins that have a section of their own in the settings."""
    places: dict[str, str] = field(factory=dict)
    """Plugin name to where it is named, for messages: file, line and key, or an option."""

    @property
    def named(self) -> frozenset[str]:
        """Plugins that the settings name other than to disable them. Each must start, or the broker does not."""
        return frozenset((*self.order, *(self.only or ()), *self.services.values(), *self.sections))


@frozen(slots=True)
class Choice:
    """A candidate, whether it is used, and why."""

    candidate: Candidate
    active: bool
    why: str


def choose(candidates: Sequence[Candidate], selection: Selection) -> list[Choice]:
    """Return all candidates, each with whether it is used; the active ones in the order in which their hooks run.

    Raises :class:`AssemblyError` if the settings name a plugin that is not installed (pluggy would ignore that
    silently), or both use and disable one; the text has a line for each mistake.
    """
    _check_names(candidates, selection)
    place = {name: position for position, name in enumerate(selection.order)}
    ordered = sorted(
        candidates,
        key=lambda c: (place.get(c.name, len(place)), c.builtin, "" if c.builtin else c.name),
    )
    return [_choice(candidate, selection) for candidate in ordered]


def _choice(candidate: Candidate, selection: Selection) -> Choice:
    name = candidate.name
    if name in selection.disabled:
        return Choice(candidate, False, "disabled by the settings")
    if not candidate.builtin and selection.only is not None and name not in selection.only:
        return Choice(candidate, False, "not among plugins.only")
    if name in selection.named:
        return Choice(candidate, True, "named in the settings")
    return Choice(candidate, True, "built-in" if candidate.builtin else "installed")


def _check_names(candidates: Sequence[Candidate], selection: Selection) -> None:
    known = {candidate.name for candidate in candidates}
    problems = []
    for name in sorted(selection.named | selection.disabled):
        where = _place(selection, name)
        if name not in known:
            hint = did_you_mean(name, known) or "; `kinmqtt plugins` lists the installed ones"
            problems.append(f"{where}no plugin named {name!r} is installed{hint}")
        elif name in selection.named and name in selection.disabled:
            problems.append(f"{where}the settings both use and disable plugin {name!r}; remove one of the two")
    if problems:
        raise AssemblyError("\n".join(problems))


def _place(selection: Selection, name: str) -> str:
    place = selection.places.get(name)
    return "" if place is None else f"{place}: "
