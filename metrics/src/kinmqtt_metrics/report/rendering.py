"""The page: everything in one file, with letters, colours and plots of its own; nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html import escape
from typing import Final

from kinmqtt_metrics import formatting as words
from kinmqtt_metrics.report import colours
from kinmqtt_metrics.report.aggregation import Facts
from kinmqtt_metrics.report.narrative import Grid, Section, Summary
from kinmqtt_metrics.report.plots import Plot

_CSS: Final = """
*{box-sizing:border-box}
html{font-size:16px;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.55;
font-family:ui-sans-serif,system-ui,-apple-system,"Segoe UI",Inter,"Helvetica Neue",Arial,"Noto Sans",sans-serif;
font-variant-numeric:tabular-nums lining-nums}
main{max-width:68rem;margin:0 auto;padding:3.5rem 2rem 4rem}
header{margin-bottom:2.4rem}
.eyebrow{margin:0;color:var(--quiet);font-size:.8rem;letter-spacing:.12em;text-transform:uppercase}
h1{font-size:2.3rem;line-height:1.15;letter-spacing:-.02em;font-weight:650;margin:.35rem 0 .7rem;
overflow-wrap:anywhere}
h2{font-size:1.4rem;letter-spacing:-.01em;font-weight:650;margin:0 0 .5rem}
h3{font-size:.82rem;font-weight:600;margin:0 0 .35rem;color:var(--quiet)}
p{margin:0 0 .7rem;max-width:46rem}
.lead{font-size:1.08rem;margin:0;max-width:none}
.quiet{color:var(--quiet)}
.figures{display:grid;grid-template-columns:repeat(4,1fr);gap:0 2rem;margin:0 0 2.2rem;
border-bottom:1px solid var(--rule)}
.figures div{border-top:1px solid var(--rule);padding:.8rem 0 1rem}
.figures dt{font-size:.84rem;line-height:1.3;color:var(--ink)}
.figures dd{margin:0;font-size:1.5rem;font-weight:600;letter-spacing:-.015em;line-height:1.25;white-space:nowrap}
.figures dd.more{font-size:.78rem;font-weight:400;color:var(--quiet);letter-spacing:0;white-space:normal;
line-height:1.35}
.warn{border-left:3px solid var(--alarm);padding:.1rem 0 .1rem 1.1rem;margin:0 0 2rem}
.warn h2{color:var(--alarm);font-size:1.05rem;margin-bottom:.3rem}
.warn p{max-width:none}
ul{margin:.2rem 0 0;padding-left:1.1rem;max-width:50rem}
li{margin:.28rem 0;padding-left:.15rem}
li::marker{color:var(--quiet)}
nav{margin:1.8rem 0 0;font-size:.9rem;color:var(--quiet);line-height:1.9}
nav a{color:var(--quiet);text-decoration:none;border-bottom:1px solid var(--rule);margin-right:1.1rem;
white-space:nowrap}
nav a:hover{color:var(--ink)}
section{border-top:1px solid var(--rule);margin-top:2.8rem;padding-top:1.9rem}
.bad::before{content:"A bad sign: ";font-weight:600}
.bad{color:var(--quiet)}
.missing{border:1px dashed var(--rule);padding:.9rem 1.1rem;color:var(--quiet);max-width:none;border-radius:3px}
figure{margin:1.4rem 0 1.2rem}
figure svg{display:block;width:100%;height:auto;overflow:visible}
.wide{overflow-x:auto;margin:1.1rem 0 1.3rem}
table{border-collapse:collapse;font-size:.86rem;line-height:1.4;min-width:50%}
th,td{text-align:right;padding:.34rem 0 .34rem 1.6rem;border-bottom:1px solid var(--rule);vertical-align:baseline}
th{font-weight:500;color:var(--quiet);font-size:.8rem}
th.t,td.t{text-align:left;padding-left:0;padding-right:1.6rem;overflow-wrap:anywhere}
td.t{min-width:5rem}
tr:last-child td{border-bottom:0}
.note{font-size:.8rem;color:var(--quiet);margin:.3rem 0 0}
details{margin:.8rem 0}
summary{cursor:pointer;font-size:.86rem;color:var(--quiet)}
summary:hover{color:var(--ink)}
footer{border-top:1px solid var(--rule);margin-top:3rem;padding-top:1rem;font-size:.8rem;color:var(--quiet)}
footer p{max-width:none;margin:0}
@media(max-width:52rem){main{padding:2rem 1.1rem}.figures{grid-template-columns:repeat(2,1fr)}h1{font-size:1.8rem}
figure{overflow-x:auto}figure svg{min-width:44rem}}
@media print{html{font-size:11.5px}main{max-width:none;padding:0}figure,tr,.figures div,.warn{break-inside:avoid}
h2,h3,.bad{break-after:avoid}section{margin-top:1.8rem;padding-top:1.2rem}nav{display:none}.wide{overflow:visible}
details::details-content{content-visibility:visible;block-size:auto}}
"""


def render(facts: Facts, summary: Summary, title: str, picture: Callable[[Plot], str], made_at: datetime) -> str:
    """The page as a text."""
    return "".join(_page(facts, summary, title, picture, made_at))


def _page(
    facts: Facts, summary: Summary, title: str, picture: Callable[[Plot], str], made_at: datetime
) -> Iterator[str]:
    span = facts.axis.span
    shown = escape(words.name(title, 120))
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
    # Nothing on the page may load or run anything, whatever a client is called.
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    yield '<meta name="color-scheme" content="light dark">\n'
    yield f"<title>{shown}</title>\n<style>:root{{{colours.variables(False)}}}"
    # On paper it is always day.
    yield f"@media screen and (prefers-color-scheme:dark){{:root{{{colours.variables(True)}}}}}{_CSS}</style>\n"
    yield "</head>\n<body>\n<main>\n<header>\n"
    yield f'<p class="eyebrow">kinmqtt report</p>\n<h1>{shown}</h1>\n'
    nodes = [words.name(node) for node in [*(n for n in facts.nodes if n not in _together(facts)), *facts.others]]
    yield (
        f'<p class="lead">{_moment(span.start_s)} to {_moment(span.end_s)} UTC, {words.duration(span.length_s)}. '
        f"{words.some(len(nodes), 'node')}: {escape(words.listed(nodes, 12))}.</p>\n</header>\n"
    )
    if summary.warnings:
        yield '<div class="warn" role="note">\n<h2>Before you read on</h2>\n'
        yield from (f"<p>{escape(text)}</p>\n" for text in summary.warnings)
        for grid in (summary.rejected, summary.left_out):
            if grid is not None:
                yield from _grid(grid)
        yield "</div>\n"
    yield '<dl class="figures">\n'
    for number, what, more in summary.figures:
        yield f'<div><dd>{escape(number)}</dd><dt>{escape(what)}</dt><dd class="more">{escape(more)}</dd></div>\n'
    yield "</dl>\n<h2>What stands out</h2>\n"
    if summary.stands_out:
        yield "<ul>\n" + "".join(f"<li>{escape(text)}</li>\n" for text in summary.stands_out) + "</ul>\n"
    else:
        yield '<p class="quiet">Nothing.</p>\n'
    yield "<nav>" + "".join(f'<a href="#{s.name}">{escape(s.title)}</a> ' for s in summary.sections) + "</nav>\n"
    for section in summary.sections:
        yield from _section(section, picture)
    yield (
        f"<footer><p>Made on {_moment(made_at.timestamp())} UTC by kinmqtt-metrics report. Times are UTC. Windows of "
        f"{facts.window_s} s, drawn in steps of {escape(words.duration(facts.axis.step_s))}; M is a million, and "
        "kB a "
        "thousand bytes.</p></footer>\n</main>\n</body>\n</html>\n"
    )


def _together(facts: Facts) -> set[str]:
    return {facts.nodes[-1]} if facts.others else set()


def _moment(at_s: float) -> str:
    return f'<time datetime="{datetime.fromtimestamp(at_s, UTC).isoformat()}">{words.moment(at_s)}</time>'


def _section(section: Section, picture: Callable[[Plot], str]) -> Iterator[str]:
    yield f'<section id="{section.name}">\n<h2>{escape(section.title)}</h2>\n<p>{escape(section.shows)}</p>\n'
    if section.bad:
        yield f'<p class="bad">{escape(section.bad)}</p>\n'
    if section.missing:
        yield f'<p class="missing">{escape(section.missing)}</p>\n'
    for plot in section.plots:
        yield f"<figure>{picture(plot)}</figure>\n"
    for grid in section.grids:
        yield from _grid(grid)
    yield "</section>\n"


def _grid(grid: Grid) -> Iterator[str]:
    title = escape(grid.title)
    yield f"<details><summary>{title}</summary>\n" if grid.folded else ""
    yield '<div class="wide">\n'
    yield "" if grid.folded else f"<h3>{title}</h3>\n"
    yield "<table>\n<thead><tr>" + _cells("th", grid.heads, grid.texts) + "</tr></thead>\n<tbody>\n"
    for row in grid.rows:
        yield f"<tr>{_cells('td', row, grid.texts)}</tr>\n"
    yield "</tbody>\n</table>\n"
    yield f'<p class="note">{escape(grid.note)}</p>\n' if grid.note else ""
    yield "</div>\n"
    yield "</details>\n" if grid.folded else ""


def _cells(tag: str, cells: object, texts: int) -> str:
    assert isinstance(cells, (list, tuple))
    return "".join(
        f'<{tag} class="t">{escape(cell)}</{tag}>' if number < texts else f"<{tag}>{escape(cell)}</{tag}>"
        for number, cell in enumerate(cells)
    )
