"""Drawing with matplotlib: panels of lines over time, steps and bars, in one style, as SVG and as PNG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from attrs import frozen

from kinmqtt_metrics import formatting
from kinmqtt_metrics.errors import ReportError
from kinmqtt_metrics.report import axes as marks
from kinmqtt_metrics.report import colours
from kinmqtt_metrics.report.facts import OTHER_NODES, together
from kinmqtt_metrics.report.svg import svg_for_page
from kinmqtt_metrics.report.time_axis import Axis, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN: Final = 10.4
_PANEL_IN: Final = 1.95
_KEYS_IN_A_ROW: Final = 4
_BAR_LEFT: Final = 0.36
_BAR_RIGHT: Final = 0.92
_LEFT: Final = 0.062
_RIGHT: Final = 0.995
_TITLE_X: Final = -_LEFT / (_RIGHT - _LEFT)
"""Titles begin where the page's text does."""
_EDGE: Final = 0.03
"""Labels of times that are so near the end of an axis stand inside of it, or they would be cut off."""
_UNTOLD: Final = "No data in this span: no sample tells of it."
_ZERO: Final = "0 throughout this span."
_MOST_KINDS: Final = 7
_LONGEST_IN_PLOT: Final = 40

_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": colours.INK,
    "axes.edgecolor": colours.RULE,
    "axes.labelcolor": colours.QUIET,
    "axes.titlecolor": colours.INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": colours.RULE,
    "grid.linewidth": 0.7,
    "xtick.color": colours.RULE,
    "ytick.color": colours.RULE,
    "xtick.labelcolor": colours.QUIET,
    "ytick.labelcolor": colours.QUIET,
    "xtick.major.size": 3.5,
    "ytick.major.size": 0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.labelcolor": colours.QUIET,
    "legend.handlelength": 1.1,
    "legend.handleheight": 0.9,
    "legend.columnspacing": 1.5,
    "legend.borderaxespad": 0.0,
    "lines.linewidth": 1.35,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "axes.unicode_minus": True,
}


@frozen(slots=True, eq=False)
class Plot:
    """A picture."""

    name: str
    """Of its file, and in the page."""
    says: str
    """For those who don't see it."""
    figure: Figure


class Drawing:
    """Draws plots over one time axis; each node has the same colour in all of them."""

    def __init__(self, axis: Axis, nodes: Sequence[str]) -> None:
        import matplotlib

        self._axis = axis
        self._nodes = nodes
        self._x = axis.middles_s / 86_400.0
        self._colours = {node: colours.node(number) for number, node in enumerate(nodes)}
        if OTHER_NODES in self._colours:
            self._colours[OTHER_NODES] = colours.node(7)
        self._style: Any = {key: value for key, value in _STYLE.items() if key in matplotlib.rcParams}

    def _panels(self, number: int, height_in: float, keys: int) -> tuple[Figure, list[Axes]]:
        from matplotlib.figure import Figure

        top_in, bottom_in, gap_in = _top_in(keys), 0.3, 0.52
        whole_in = top_in + bottom_in + number * height_in + (number - 1) * gap_in
        figure = Figure(figsize=(_WIDTH_IN, whole_in))
        grid = figure.subplots(number, 1, sharex=True, squeeze=False)
        figure.subplots_adjust(
            left=_LEFT,
            right=_RIGHT,
            top=1 - top_in / whole_in,
            bottom=bottom_in / whole_in,
            hspace=gap_in / height_in,
        )
        return figure, [row[0] for row in grid]

    def lines(
        self,
        name: str,
        says: str,
        panels: Sequence[tuple[str, Mapping[str, Line]]],
        write: Callable[[float], str],
        shaded: Line | None = None,
        height_in: float = _PANEL_IN,
        log: bool = False,
    ) -> Plot | None:
        panels = [(title, lines) for title, lines in panels if lines]
        if not panels:
            return None
        nodes = [node for node in self._nodes if any(node in lines for _, lines in panels)]
        positive = [_positive(lines) for _, lines in panels]
        # All panels of a plot alike, or lines that look alike would be others.
        log = log and any(len(good) and np.max(good) >= marks.LOGARITHMIC_FROM * np.min(good) for good in positive)
        with self._styled():
            figure, axes = self._panels(len(panels), height_in, len(nodes))
            for axis, (title, lines), good in zip(axes, panels, positive, strict=True):
                for node, line in lines.items():
                    self._line(axis, line, self._colours[node])
                axis.set_title(title, x=_TITLE_X)
                if not len(good):
                    told = any(not np.isnan(line).all() for line in lines.values())
                    _say(axis, _ZERO if told else _UNTOLD)
                elif log:
                    self._log_axis(axis, float(np.min(good)), float(np.max(good)))
                else:
                    self._value_axis(axis, float(np.max(good)) * 1.14, write)
                self._mark_highest(axis, lines, write)
                if shaded is not None:
                    self._shade(axis, shaded)
            self._time_axis(axes[-1])
            self._legend(axes[0], nodes)
            return Plot(name, says, figure)

    def steps(
        self,
        name: str,
        title: str,
        lines: Mapping[str, Line],
        label: Callable[[str], str],
        stacked: bool = True,
    ) -> Plot | None:
        """By kinds: stacked where they add up, or a line for each."""
        if not lines:
            return None
        ordered = sorted(lines, key=lambda key: -np.nansum(lines[key]))
        shown = {key: np.nan_to_num(lines[key]) for key in ordered[:_MOST_KINDS]}
        rest = [lines[key] for key in ordered[_MOST_KINDS:]]
        with self._styled():
            from matplotlib.patches import Patch

            figure, (axis,) = self._panels(1, 2.3, len(shown) + bool(rest))
            begins = self._axis.begins_s / 86_400.0
            edges = np.append(begins, begins[-1] + self._axis.step_s / 86_400.0)
            below = np.zeros(self._axis.steps)
            handles = []
            stack = [(label(key), colours.kind(number), line) for number, (key, line) in enumerate(shown.items())]
            if rest:
                more = np.nan_to_num(together(rest)) if stacked else np.nan_to_num(np.array(rest)).max(axis=0)
                text = f"{len(rest)} more" if stacked else f"the most of {len(rest)} more"
                stack.append((text, colours.kind(7), more))
            for text, colour, line in stack:
                if stacked:
                    axis.stairs(below + line, edges, baseline=below, fill=True, color=colour, linewidth=0)
                    below = below + line
                else:
                    axis.stairs(line, edges, baseline=None, color=colour, linewidth=1.4)
                    below = np.maximum(below, line)
                handles.append(Patch(color=colour, label=_cut(text)))
            step = formatting.duration(self._axis.step_s)
            axis.set_title(f"{title}, in each {step}", x=_TITLE_X)
            if np.max(below) > 0:
                self._value_axis(axis, max(1.0, float(np.max(below)) * 1.12), formatting.short, whole=True)
            else:
                _say(axis, _ZERO)
            self._time_axis(axis)
            self._key(axis, handles)
            return Plot(name, title, figure)

    def bars(self, name: str, title: str, found: Mapping[str, Mapping[str, tuple[int, int]]]) -> Plot | None:
        if not found:
            return None
        with self._styled():
            from matplotlib.figure import Figure

            nodes = [node for node in self._nodes if any(node in by_node for by_node in found.values())]
            top_in = _top_in(len(nodes))
            height_in = top_in + 0.08 + 0.27 * len(found)
            figure = Figure(figsize=(_WIDTH_IN, height_in))
            axis = figure.subplots()
            figure.subplots_adjust(
                left=_BAR_LEFT, right=_BAR_RIGHT, top=1 - top_in / height_in, bottom=0.08 / height_in
            )
            places = np.arange(len(found))[::-1]
            left = np.zeros(len(found))
            for node in nodes:
                widths = np.array([by_node.get(node, (0, 0))[1] for by_node in found.values()], float)
                axis.barh(places, widths, 0.62, left=left, color=self._colours[node], linewidth=0)
                left += widths
            longest = float(np.max(left))
            for place, width in zip(places, left, strict=True):
                axis.text(width + longest * 0.008, place, formatting.size(width), va="center", color=colours.QUIET)
            axis.set_yticks(places, [formatting.name(key, _LONGEST_IN_PLOT) for key in found])
            axis.tick_params(axis="y", labelcolor=colours.INK)
            axis.set_xlim(0, longest * 1.02 or 1)
            axis.set_ylim(-0.6, len(found) - 0.4)
            axis.grid(False)
            axis.xaxis.set_visible(False)
            axis.spines["bottom"].set_visible(False)
            # The title stands where the names begin.
            axis.set_title(title, x=-_BAR_LEFT / (_BAR_RIGHT - _BAR_LEFT))
            self._legend(axis, nodes)
            return Plot(name, title, figure)

    def _line(self, axis: Axes, line: Line, colour: str) -> None:
        axis.plot(self._x, line, color=colour)
        # A single value between gaps is no line.
        told = ~np.isnan(line)
        before, after = np.append(False, told[:-1]), np.append(told[1:], False)
        alone = told & ~before & ~after
        if alone.any():
            axis.plot(self._x[alone], line[alone], "o", color=colour, markersize=3)

    def _mark_highest(self, axis: Axes, lines: Mapping[str, Line], write: Callable[[float], str]) -> None:
        """The highest value of all, with a dot and its number."""
        told = {node: line for node, line in lines.items() if not np.isnan(line).all()}
        if not told or len(self._x) < 3:
            return
        node = max(told, key=lambda node: float(np.nanmax(told[node])))
        at = int(np.nanargmax(told[node]))
        value = float(told[node][at])
        if value <= 0:
            return
        axis.plot([self._x[at]], [value], "o", color=self._colours[node], markersize=4)
        right = at > 0.9 * len(self._x)
        axis.annotate(
            write(value),
            (self._x[at], value),
            xytext=(-6 if right else 6, 3),
            textcoords="offset points",
            ha="right" if right else "left",
            fontsize=8.5,
            color=colours.INK,
        )

    def _shade(self, axis: Axes, shaded: Line) -> None:
        begins = self._axis.begins_s
        for at in np.flatnonzero(np.nan_to_num(shaded) > 0):
            begin, end = begins[at] / 86_400.0, (begins[at] + self._axis.step_s) / 86_400.0
            axis.axvspan(begin, end, color=colours.ALARM, alpha=0.18, linewidth=0, zorder=0)

    def _time_axis(self, axis: Axes) -> None:
        span = self._axis.span
        start_s, end_s = span.start_s, max(span.end_s, span.start_s + 1)
        axis.set_xlim(start_s / 86_400.0, end_s / 86_400.0)
        at = marks.times(start_s, end_s)
        axis.set_xticks([at_s / 86_400.0 for at_s, _ in at], [label for _, label in at])
        for (at_s, _), label in zip(at, axis.get_xticklabels(), strict=True):
            place = (at_s - start_s) / (end_s - start_s)
            label.set_horizontalalignment("left" if place < _EDGE else "right" if place > 1 - _EDGE else "center")
        axis.annotate(
            "UTC",
            (0, 0),
            xycoords="axes fraction",
            xytext=(-19, -8),
            textcoords="offset points",
            ha="right",
            va="top",
            color=colours.QUIET,
            fontsize=7.5,
        )

    def _value_axis(self, axis: Axes, top: float, write: Callable[[float], str], whole: bool = False) -> None:
        axis.set_ylim(0, top)
        _mark(axis, marks.values(top, write, whole))

    def _log_axis(self, axis: Axes, least_s: float, most_s: float) -> None:
        at = marks.lengths(least_s, most_s)
        axis.set_yscale("log")
        axis.set_ylim(at[0][0], at[-1][0])
        _mark(axis, at)

    def _legend(self, axis: Axes, nodes: Sequence[str]) -> None:
        from matplotlib.patches import Patch

        handles = [Patch(color=self._colours[node], label=formatting.name(node, 22)) for node in nodes]
        self._key(axis, handles)

    def _key(self, axis: Axes, handles: Sequence[Any]) -> None:
        from matplotlib.transforms import ScaledTranslation

        axis.figure.legend(
            handles=list(handles),
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0, 0.0, 0.0),
            bbox_transform=axis.transAxes + ScaledTranslation(0, 7 / 72, axis.figure.dpi_scale_trans),
            ncols=_KEYS_IN_A_ROW if len(handles) > _KEYS_IN_A_ROW else max(1, len(handles)),
        )

    def _styled(self) -> Any:
        import matplotlib

        return matplotlib.rc_context(self._style)

    def svg(self, plot: Plot) -> str:
        """For a page: colours are its variables, letters its own, and names those of this plot."""
        out = io.StringIO()
        with self._styled(), _quiet():
            import matplotlib

            with matplotlib.rc_context({"svg.hashsalt": plot.name}):
                plot.figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        return svg_for_page(out.getvalue(), plot.name, plot.says)

    def png(self, plot: Plot, folder: Path) -> Path:
        """As a file. Raises :class:`ReportError`."""
        path = folder / f"{plot.name}.png"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self._styled(), _quiet():
                plot.figure.savefig(path, format="png", dpi=160, facecolor=colours.PAPER)
        except OSError as error:
            raise ReportError(f"{path} can't be written: {error.strerror or error}") from error
        return path


def _positive(lines: Mapping[str, Line]) -> Line:
    values = np.concatenate(list(lines.values()))
    good: Line = values[~np.isnan(values) & (values > 0)]
    return good


def _mark(axis: Axes, at: marks.Marks) -> None:
    from matplotlib.ticker import NullLocator

    axis.set_yticks([value for value, _ in at], [label for _, label in at])
    axis.yaxis.set_minor_locator(NullLocator())


def _say(axis: Axes, why: str) -> None:
    """In place of an empty frame."""
    axis.set_ylim(0, 1)
    axis.set_yticks([])
    axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", va="center", color=colours.QUIET)


def _top_in(keys: int) -> float:
    """The room above the first panel, for its title and a legend of so many names."""
    return 0.36 + 0.17 * max(0, -(-keys // _KEYS_IN_A_ROW) - 1)


def _cut(text: str) -> str:
    return text if len(text) <= 30 else text[:29] + "…"


@contextmanager
def _quiet() -> Iterator[None]:
    """Letters that the font of the PNG lacks are no concern of the reader's terminal."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield
