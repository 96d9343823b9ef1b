"""A log-log plot as one SVG file that needs nothing else, readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr


class Line(NamedTuple):
    """A line of a plot; each point is an (x, y) above zero."""

    name: str
    points: Sequence[tuple[float, float]]


WIDTH: Final = 760
LEFT: Final = 108
RIGHT: Final = 44
TOP: Final = 56
FIELD_HEIGHT: Final = 340
BELOW_FIELD: Final = 62
"""Room for the numbers and the title of the x axis, before the first line of the legend."""
LEGEND_LINE: Final = 22

# Six colours that the colour-blind tell apart, for light pages and for dark ones; markers say the same once more.
LIGHT: Final = ("#0060a8", "#c04a00", "#007a56", "#a8407f", "#7a6400", "#4a4a4a")
DARK: Final = ("#6cb8f0", "#f59a4a", "#4fd0a4", "#ec9ccb", "#e0c84c", "#c8c8c8")
DASHES: Final = ("none", "7 4", "2 3", "9 3 2 3", "12 4", "4 4")

STYLE: Final = """
svg { font: 14px "DejaVu Sans", Verdana, Helvetica, Arial, sans-serif; }
.page { fill: #ffffff; } text { fill: #1f2328; } .title { font-size: 17px; font-weight: bold; }
.grid { stroke: #d0d7de; stroke-width: 1; } .fine { stroke: #eef1f4; stroke-width: 1; }
.frame { fill: none; stroke: #59636e; stroke-width: 1; } .line { fill: none; stroke-width: 2; }
"""
STYLE_DARK: Final = """
.page { fill: #0d1117; } text { fill: #e6edf3; } .grid { stroke: #3a424c; } .fine { stroke: #1c222a; }
.frame { stroke: #9198a1; }
"""


def log_log_plot(title: str, x_title: str, y_title: str, lines: Sequence[Line]) -> str:
    """The text of an SVG file with both axes logarithmic."""
    x_axis = _Axis([x for line in lines for x, _ in line.points], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([y for line in lines for _, y in line.points], TOP + FIELD_HEIGHT, TOP)
    height = TOP + FIELD_HEIGHT + BELOW_FIELD + LEGEND_LINE * len(lines) + 12
    style = f"{STYLE}{_colours(LIGHT)}@media (prefers-color-scheme: dark) {{{STYLE_DARK}{_colours(DARK)}}}"
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label={quoteattr(title)}>',
        f"<style>{style}\n</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="title" x="{middle:g}" y="32" text-anchor="middle">{escape(title)}</text>',
        *_grid(x_axis, y_axis),
        f'<text x="{middle:g}" y="{TOP + FIELD_HEIGHT + 46}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text transform="translate(22 {TOP + FIELD_HEIGHT / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text>",
    ]
    for number, line in enumerate(lines):
        parts += _drawn(number, line, x_axis, y_axis)
        y = TOP + FIELD_HEIGHT + BELOW_FIELD + LEGEND_LINE * number + 12
        parts += _stroke(number, [(LEFT, y), (LEFT + 36, y)])
        parts.append(_marker(number, LEFT + 18, y))
        parts.append(f'<text x="{LEFT + 48}" y="{y + 5}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """Whole decades around some values, laid out between two pixels."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.first = floor(log10(min(values)))
        self.last = max(ceil(log10(max(values))), self.first + 1)
        self._begin = begin
        self._end = end

    def at(self, value: float) -> float:
        """The pixel of a value."""
        share = (log10(value) - self.first) / (self.last - self.first)
        return round(self._begin + share * (self._end - self._begin), 1)


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    bottom, right = TOP + FIELD_HEIGHT, WIDTH - RIGHT
    fine: list[str] = []
    coarse: list[str] = []
    numbers: list[str] = []
    for decade in range(x_axis.first, x_axis.last + 1):
        for step in range(1, 10 if decade < x_axis.last else 2):
            x = x_axis.at(step * 10.0**decade)
            into, kind = (coarse, "grid") if step == 1 else (fine, "fine")
            into.append(f'<line class="{kind}" x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}"/>')
        x = x_axis.at(10.0**decade)
        numbers.append(f'<text x="{x}" y="{bottom + 21}" text-anchor="middle">{_number(decade)}</text>')
    for decade in range(y_axis.first, y_axis.last + 1):
        for step in range(1, 10 if decade < y_axis.last else 2):
            y = y_axis.at(step * 10.0**decade)
            into, kind = (coarse, "grid") if step == 1 else (fine, "fine")
            into.append(f'<line class="{kind}" x1="{LEFT}" y1="{y}" x2="{right}" y2="{y}"/>')
        y = y_axis.at(10.0**decade) + 5
        numbers.append(f'<text x="{LEFT - 8}" y="{y:g}" text-anchor="end">{_number(decade)}</text>')
    frame = f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{FIELD_HEIGHT}"/>'
    return [*fine, *coarse, frame, *numbers]


def _number(decade: int) -> str:
    return f"{10**decade:,}" if decade >= 0 else f"{10.0**decade:.{-decade}f}"


def _drawn(number: int, line: Line, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    pixels = [(x_axis.at(x), y_axis.at(y)) for x, y in line.points]
    return [*_stroke(number, pixels), *(_marker(number, x, y) for x, y in pixels)]


def _stroke(number: int, pixels: Sequence[tuple[float, float]]) -> list[str]:
    points = " ".join(f"{x:g},{y:g}" for x, y in pixels)
    return [f'<polyline class="line s{number % len(LIGHT)}" points="{points}"/>'] if len(pixels) > 1 else []


def _marker(number: int, x: float, y: float) -> str:
    name = f"m{number % len(LIGHT)}"
    if number % 3 == 0:
        return f'<circle class="{name}" cx="{x:g}" cy="{y:g}" r="4"/>'
    if number % 3 == 1:
        return f'<rect class="{name}" x="{x - 4:g}" y="{y - 4:g}" width="8" height="8"/>'
    return f'<path class="{name}" d="M{x:g} {y - 5:g} l5 9 h-10 z"/>'


def _colours(colours: Sequence[str]) -> str:
    rules = []
    for number, (colour, dashes) in enumerate(zip(colours, DASHES, strict=True)):
        rules.append(f".s{number} {{ stroke: {colour}; stroke-dasharray: {dashes}; }}")
        rules.append(f".m{number} {{ fill: {colour}; }}")
    return "\n".join(rules) + "\n"
