"""The page: templates, filled in. Everything is in one file; nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Final

from kinmqtt_metrics import formatting
from kinmqtt_metrics.report import colours, narrative, reasons
from kinmqtt_metrics.report.facts import OTHER_NODES, Facts

if TYPE_CHECKING:
    from jinja2 import Environment

    from kinmqtt_metrics.report.plots import Plot

_FOLD: Final = re.compile(r"[ \n]*\n[ \n]*")


def render(
    facts: Facts, told: narrative.Narrative, title: str, picture: Callable[[Plot], str], made_at: datetime
) -> str:
    """Returns the page. ``picture`` draws a plot as SVG."""
    from markupsafe import Markup

    return (
        _environment()
        .get_template("page.html")
        .render(
            facts=facts,
            told=told,
            title=formatting.name(title, 120),
            sections=narrative.SECTIONS,
            css=Markup(_css()),
            picture=lambda plot: Markup(picture(plot)),
            made_at_s=made_at.timestamp(),
        )
    )


def _css() -> str:
    style = (resources.files("kinmqtt_metrics.report") / "templates" / "page.css").read_text("utf-8")
    # On paper it is always day.
    return (
        f":root{{{colours.variables(False)}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{colours.variables(True)}}}}}\n{style}"
    )


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("kinmqtt_metrics.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    for function in (
        formatting.whole,
        formatting.short,
        formatting.size,
        formatting.duration,
        formatting.moment,
        formatting.name,
        formatting.spaced,
        formatting.some,
        formatting.listed,
        reasons.of_end,
        fold,
    ):
        environment.filters[function.__name__] = function
    environment.globals.update(
        OTHER_NODES=OTHER_NODES,
        MOST_EVENTS=narrative.MOST_EVENTS,
        MOST_RULES=narrative.MOST_RULES,
        invalid_rows=narrative.invalid_rows,
        iso=lambda at_s: datetime.fromtimestamp(at_s, UTC).isoformat(),
    )
    return environment


def fold(text: str) -> str:
    """Returns a text of several lines as one."""
    from markupsafe import Markup, escape

    return Markup(_FOLD.sub(" ", escape(text)).strip(" \n"))
