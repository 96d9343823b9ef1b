"""The colours of a report, by day and by night: a plot is drawn once, and in the page each colour is a variable."""

from __future__ import annotations

from typing import Final

INK: Final = "#1c2430"
QUIET: Final = "#677284"
RULE: Final = "#e3e6eb"
PAPER: Final = "#fdfdfc"
ALARM: Final = "#c8372d"

_NODES: Final = ("#2563a8", "#d9782a", "#2f9167", "#8857b3", "#c24a77", "#1f93a3", "#8f8420", "#8a93a1")
_KINDS: Final = ("#b8432f", "#e0a13a", "#7d6bb0", "#4c8fb8", "#6f9a54", "#a8657f", "#97815f", "#9aa2ae")

_NIGHT: Final = {
    INK: "#e6e9ee",
    QUIET: "#97a1b0",
    RULE: "#2b323c",
    PAPER: "#14181e",
    ALARM: "#f0746a",
    **dict(
        zip(
            _NODES,
            ("#6ba6e8", "#f0a05c", "#5fc497", "#b68ce0", "#ea82a8", "#56c2d1", "#c9bd56", "#a9b2bf"),
            strict=True,
        )
    ),
    **dict(
        zip(
            _KINDS,
            ("#e57c68", "#edc06e", "#a99be0", "#7fbce0", "#9cc983", "#d596ae", "#c6b08c", "#b4bbc6"),
            strict=True,
        )
    ),
}

NAMES: Final = {
    INK: "ink",
    QUIET: "quiet",
    RULE: "rule",
    PAPER: "paper",
    ALARM: "alarm",
    **{colour: f"node-{number}" for number, colour in enumerate(_NODES)},
    **{colour: f"kind-{number}" for number, colour in enumerate(_KINDS)},
}
"""What a colour is called in the page."""


def node(number: int) -> str:
    """The colour of a node by its place; the last is for the others."""
    return _NODES[min(number, len(_NODES) - 1)]


def kind(number: int) -> str:
    """The colour of a reason, a rule and the like; the last is for the rest."""
    return _KINDS[min(number, len(_KINDS) - 1)]


def variables(night: bool) -> str:
    """All of them as CSS."""
    return "".join(f"--{name}:{_NIGHT[colour] if night else colour};" for colour, name in NAMES.items())
