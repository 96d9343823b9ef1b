"""What a report says in words: its summary, and of each part what it shows, a bad sign, and why it may be empty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from attrs import Factory, frozen

from kinmqtt_metrics import formatting as words
from kinmqtt_metrics.report import reasons
from kinmqtt_metrics.report.aggregation import OTHER_NODES, Facts, Line, together
from kinmqtt_metrics.report.plots import Painter, Plot

_SAMPLES_WHY: Final = (
    "Samples come from the plugin metrics, at each broker.sys_interval_s (0: never). A window is in a table only "
    "once it is closed: the watermark after its end."
)
_EVENTS_WHY: Final = "Nothing of the kind happened, or the plugin metrics was told to write no events."


@frozen(slots=True)
class Grid:
    """A table: numbers stand at the right."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    """How many columns from the left hold text."""
    note: str = ""
    folded: bool = False


@frozen(slots=True)
class Section:
    """A part of the report."""

    name: str
    title: str
    shows: str
    bad: str
    plots: Sequence[Plot] = ()
    grids: Sequence[Grid] = ()
    missing: str = ""
    """Why there is nothing to show."""


@frozen(slots=True)
class Summary:
    """What stands on top."""

    figures: Sequence[tuple[str, str, str]]
    """A number, what it is, and more about it."""
    stands_out: Sequence[str]
    warnings: Sequence[str]
    """What must be known before anything is believed."""
    rejected: Grid | None = None
    left_out: Grid | None = None
    sections: Sequence[Section] = Factory(list)


def tell(facts: Facts, painter: Painter) -> Summary:
    """All of it."""
    sections = [
        _traffic(facts, painter),
        _latency(facts, painter),
        _queues(facts, painter),
        _clients(facts, painter),
        _lengths(facts, painter),
        _reconnects(facts, painter),
        _drops(facts, painter),
        _refusals(facts, painter),
        _shadow(facts, painter),
        _tops(facts, painter),
        _everything(facts),
    ]
    return Summary(
        _figures(facts), _stands_out(facts), _warnings(facts), _rejected(facts), _left_out(facts), sections
    )


# On top


def _figures(facts: Facts) -> list[tuple[str, str, str]]:
    figures = []
    for name, title in (("messages.received", "messages received"), ("messages.sent", "messages sent")):
        if _has(facts.totals, name):
            total = facts.total(name)
            mean = total / max(1e-9, facts.axis.span.length_s)
            figures.append((words.whole(total), title, f"{words.short(mean)} a second on average"))
    for name, title in (("bytes.received", "bytes received"), ("bytes.sent", "bytes sent")):
        if _has(facts.totals, name):
            total = facts.total(name)
            figures.append((words.size(total), title, f"{words.whole(total)} bytes"))
    connected = [line.mean for (_, name), line in facts.gauges.items() if name == "clients.connected"]
    if connected:
        line = together(connected)
        mean = float(np.nanmean(line))
        shown = words.short(mean) if 0 < mean < 10 else words.whole(mean)
        figures.append((shown, "clients connected, on average", f"up to {words.whole(np.nanmax(line))}"))
    dropped = sum(facts.drop_totals.values())
    figures.append((words.whole(dropped), "messages dropped", "did not reach a client they were meant for"))
    refused = sum(facts.refusal_totals.values())
    figures.append((words.whole(refused), "refusals", "of connects, rights and limits"))
    figures.append(
        (
            words.whole(facts.storm_windows),
            "windows with a reconnect storm",
            f"of {facts.window_s} s each, by node",
        )
    )
    return figures


def _stands_out(facts: Facts) -> list[str]:
    told = []
    length_s = facts.axis.lengths_s
    for name, verb in (("messages.received", "were received"), ("messages.sent", "were sent")):
        if _has(facts.totals, name):
            line = facts.node_line(name) / length_s
            at = _highest(line)
            if at is not None and line[at] > 0:
                told.append(f"Most messages {verb} {_when(facts, at)}: {words.short(line[at])} a second.")
    worst = _worst((node, line.p99) for (node, name), line in facts.histograms.items() if name == "stores.commit")
    if worst:
        node, at, value = worst
        told.append(
            f"Acknowledgements waited longest for the stores {_when(facts, at)}, at {words.name(node)}: 1 in 100 "
            f"took {words.duration(value)} or longer."
        )
    worst = _worst((node, line.p99) for (node, name), line in facts.gauge_spreads.items() if name == "queued.count")
    if worst and worst[2] > 0:
        node, at, value = worst
        told.append(
            f"The longest queue stood {_when(facts, at)}, at {words.name(node)}: {words.short(value)} messages "
            "waited."
        )
    if facts.storms:
        storm = max(facts.storms, key=lambda storm: storm.connects)
        told.append(
            f"The worst reconnect storm began at {words.moment(storm.start_s)} UTC at {words.name(storm.node)}: "
            f"{words.whole(storm.connects)} connects of {words.some(storm.clients, 'client')} in "
            f"{facts.window_s} s."
        )
    for lines in (facts.drops, facts.refusals):
        line = together(lines.values())
        at = _highest(line)
        if at is not None and line[at] > 0:
            reason = max(lines, key=lambda key: float(np.nan_to_num(lines[key])[at]))
            why = words.spaced(reason) if lines is facts.drops else f"by {words.name(reason)}"
            subject = "messages were dropped" if lines is facts.drops else "was refused"
            told.append(f"Most {subject} {_when(facts, at)}: {words.whole(line[at])}, mostly {why}.")
    gaps = _gaps(facts)
    if gaps:
        told.append(
            f"Nothing was told for a while by {words.listed(gaps)}: the lines have gaps there. A broker was down, "
            "or its records have not come."
        )
    return told


def _warnings(facts: Facts) -> list[str]:
    told = []
    late = sum(facts.late.values())
    if late:
        nodes: dict[str, int] = defaultdict(int)
        for (node, _), records in facts.late.items():
            nodes[node] += records
        by_node = words.listed([f"{words.name(node)} ({words.whole(n)})" for node, n in sorted(nodes.items())])
        told.append(
            f"{words.some(late, 'record')} came too late and {'is' if late == 1 else 'are'} in no sum of this "
            f"page: {by_node}. They are in the table raw. The table late does not say of which time they are, so "
            "this counts all there are. If it goes on, give the pipeline a longer watermark, or set that node's "
            "clock."
        )
    if facts.rejected_rows:
        told.append(
            f"{words.some(facts.rejected_rows, 'line or file', 'lines or files')} of the landing folder could not be "
            f"read, and {'is' if facts.rejected_rows == 1 else 'are'} in no sum of this page, whatever the time."
        )
    if facts.left_out:
        told.append(
            f"{words.some(len(facts.left_out), 'file')} of the tables could not be read, and what "
            f"{'it has' if len(facts.left_out) == 1 else 'they have'} is missing from this page."
        )
    if facts.odd:
        told.append(f"{odd_rows(facts.odd)}, and are in no sum of this page.")
    if facts.unread_sketches:
        rows = sum(facts.unread_sketches.values())
        told.append(
            f"{words.some(rows, 'row')} of the tables {words.listed(sorted(facts.unread_sketches))} "
            f"{'has' if rows == 1 else 'have'} no sketch that can be read, and {'is' if rows == 1 else 'are'} in the "
            "sums and means of this page, and in no percentile."
        )
    if facts.missing:
        told.append(
            "Records are missing, whatever the time: they were deleted unread, stood in what was rejected, or are "
            "not published yet. " + ". ".join(words.name(sentence, 400) for sentence in facts.missing) + "."
        )
    if facts.others:
        told.append(
            f"There are more nodes than colours. The {words.some(len(facts.others), 'node')} with the least "
            f"traffic are told together as {OTHER_NODES}, and are in no plot of gauges: "
            f"{words.listed([words.name(node) for node in facts.others], 12)}."
        )
    if facts.forgot_names:
        told.append(
            "There are so many clients or topics that the lightest were not added up: the tops are at least so much."
        )
    return told


def odd_rows(odd: Mapping[str, int]) -> str:
    """How many rows of which tables were set aside."""
    by_table = words.listed([f"{table} ({words.whole(rows)})" for table, rows in sorted(odd.items())], len(odd))
    rows = sum(odd.values())
    return f"{words.some(rows, 'row')} of the tables {by_table} can't be: times, counts or histograms that nobody has"


def _rejected(facts: Facts) -> Grid | None:
    if not facts.rejected_rows:
        return None
    rows = [
        (
            words.name(r.file, 90),
            str(r.line or "whole file"),
            words.name(r.why, 80),
            words.name(r.text, 60),
        )
        for r in facts.rejected
    ]
    note = "" if len(rows) == facts.rejected_rows else f"The first {len(rows)} of {words.whole(facts.rejected_rows)}."
    return Grid("What could not be read", ("file", "line", "why", "begins with"), rows, texts=4, note=note)


def _left_out(facts: Facts) -> Grid | None:
    if not facts.left_out:
        return None
    rows = [(words.name(left.path, 90), words.name(left.why, 160)) for left in facts.left_out[:20]]
    note = "" if len(rows) == len(facts.left_out) else f"The first {len(rows)} of {len(facts.left_out)}."
    return Grid("Files that were left out", ("file", "why"), rows, texts=2, note=note)


# The parts


def _traffic(facts: Facts, painter: Painter) -> Section:
    plots = _there(painter.messages(), painter.bytes())
    rows = []
    for node in facts.nodes:
        if (node, "messages.received") in facts.totals:
            got, sent, got_bytes, sent_bytes = (
                facts.totals.get((node, name), 0)
                for name in ("messages.received", "messages.sent", "bytes.received", "bytes.sent")
            )
            line = facts.rates[node, "messages.received"] / facts.axis.lengths_s
            rows.append(
                (
                    words.name(node),
                    words.whole(got),
                    words.whole(sent),
                    words.size(got_bytes),
                    words.size(sent_bytes),
                    words.short(float(np.nanmax(line))),
                )
            )
    heads = ("node", "messages received", "messages sent", "bytes received", "bytes sent", "most received, /s")
    return Section(
        "traffic",
        "Traffic",
        "How many messages (PUBLISH packets) and how many bytes (of packets of every kind) each broker received "
        f"and sent, a second, averaged over steps of {words.duration(facts.axis.step_s)}. The dot marks the "
        "highest step.",
        "a line that falls to nothing while others go on: clients have lost that broker. A gap says that the "
        "broker told nothing. Where what is sent grows and what is received does not, somebody subscribed to too "
        "much.",
        plots,
        [Grid("Sums of the whole span", heads, rows)] if rows else (),
        "" if plots else _missing(facts, "rates", _SAMPLES_WHY),
    )


def _latency(facts: Facts, painter: Painter) -> Section:
    plots = painter.latencies()
    rows = [
        (
            f"{words.name(name)}",
            words.name(node),
            words.whole(line.observations),
            *(words.duration(value) for value in (line.total / line.observations, *line.whole)),
        )
        for (node, name), line in sorted(facts.histograms.items(), key=lambda item: item[0][::-1])
        if line.observations and facts.histogram_units.get(name) == "seconds"
    ]
    return Section(
        "latency",
        "Latency",
        "How long things took; where that differs a hundredfold, each mark is ten times the one below, or more: "
        "stores.commit is how long acknowledgements waited until the stores had kept what they promise. Half took no "
        "longer than p50, and 1 in 100 took longer than p99. Counts of a step's windows were added up before; "
        "within a bucket values are interpolated.",
        "p99 rises while p50 stays: something stalls now and then, often a disk. Both rise with the traffic: the "
        "broker or its disk is at its limit. A line that is flat at the top has left the last bucket, and the "
        "truth is higher.",
        plots,
        [Grid("The whole span", ("what", "node", "observations", "mean", "p50", "p95", "p99"), rows, texts=2)]
        if rows
        else (),
        "" if plots else _missing(facts, "histograms", _SAMPLES_WHY),
    )


def _queues(facts: Facts, painter: Painter) -> Section:
    plots = _there(painter.queues())
    return Section(
        "queues",
        "Queues",
        "How many messages waited for clients that were away or slow (the gauge queued.count). " + _GAUGE_WORDS,
        "it grows and does not come down: clients are away for good, or receive less than is sent to them. What "
        "comes next is messages that are dropped because a queue is full.",
        plots,
        _gauge_grid(facts, ("queued.count", "inflight.count")),
        "" if plots else _missing(facts, "gauges", _SAMPLES_WHY),
    )


def _clients(facts: Facts, painter: Painter) -> Section:
    plots = _there(painter.clients())
    names = (
        "clients.connected",
        "clients.total",
        "connections.open",
        "sessions.stored",
        "subscriptions.count",
        "retained.count",
        "overload.level",
    )
    return Section(
        "clients",
        "Clients and sessions",
        "How many clients had a connection, and how many sessions are stored, of clients with a connection and "
        "without.",
        "a step down: many were cut off at once, and will come back at once. Stored sessions that only ever grow "
        "belong to clients that come once and never again; limits.max_session_expiry_s says how "
        "long they may be kept.",
        plots,
        _gauge_grid(facts, names, folded=True),
        "" if plots else _missing(facts, "gauges", _SAMPLES_WHY),
    )


def _lengths(facts: Facts, painter: Painter) -> Section:
    plots = _there(painter.lengths())
    rows = [
        (
            reasons.of_end(reason),
            words.whole(of.connections),
            words.duration(of.sum_s / of.connections),
            *("–" if value is None else words.duration(value) for value in (of.p50_s, of.p99_s)),
            words.duration(of.max_s),
        )
        for reason, of in sorted(facts.lengths.items(), key=lambda item: -item[1].connections)[:15]
    ]
    heads = ("why they ended", "connections", "mean", "p50", "p99", "longest")
    return Section(
        "lengths",
        "How long connections lasted",
        "Of the connections that ended in each step, how long they had lasted, by node. " + _LENGTH_WORDS,
        "p50 falls to seconds: clients connect, fail and come again. Where keep alive timeout leads the table, "
        "networks drop connections in silence.",
        plots,
        [Grid("By reason, the whole span", heads, rows)] if rows else (),
        "" if plots else _missing(facts, "connections", _EVENTS_WHY),
    )


def _reconnects(facts: Facts, painter: Painter) -> Section:
    plots = _there(painter.connects())
    rows = [
        (
            words.moment(storm.start_s),
            words.name(storm.node),
            words.name(storm.client),
            words.whole(storm.connects),
            words.whole(storm.clients),
            words.whole(storm.most),
        )
        for storm in facts.storms
    ]
    heads = ("window, UTC", "node", "most by client", "connects", "clients", "of that client")
    note = (
        ""
        if facts.storm_windows == len(rows)
        else f"The {len(rows)} with the most connects, of {words.whole(facts.storm_windows)}."
    )
    none = "" if rows or not plots else "No window of this span was a storm. "
    return Section(
        "reconnects",
        "Reconnect storms",
        f"{none}How many clients connected, a second. Shaded is where the pipeline saw a storm: more connects in "
        "a window than it was told to take for usual, of all clients or of one.",
        "any shade. If it follows a gap, a broker came back and all returned at once, which passes; clients "
        "should wait a random time. If one client stands for most, it is broken, or two use the same client id "
        "and take turns in throwing each other out.",
        plots,
        [Grid("Storms", heads, rows, texts=3, note=note)] if rows else (),
        "" if plots else _missing(facts, "reconnects", _EVENTS_WHY),
    )


def _drops(facts: Facts, painter: Painter) -> Section:
    plots = _there(painter.drops())
    grid = _cross("By reason and node", "reason", facts, facts.drop_totals, reasons.of_drop)
    return Section(
        "drops",
        "Messages dropped",
        "Messages that did not reach a client they were meant for, of all nodes together, by reason. These are "
        "the broker's own counters: each is counted once for each client that missed it.",
        "queue full: clients are away too long or too slow, and lose messages that were acknowledged to whoever "
        "sent them. Outbound buffer full and offline concern QoS 0 only, which promises nothing. Store failed "
        "and overload are the broker's own trouble.",
        plots,
        [grid] if grid else (),
        "" if plots else _missing(facts, "drops", "Good news, if samples are there: the broker dropped nothing."),
    )


def _refusals(facts: Facts, painter: Painter) -> Section:
    plots = _there(painter.refusals())
    sums: dict[tuple[str, str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (node, name, by, reason), count in facts.refusal_totals.items():
        sums[name, by, reason][_node_of(facts, node)] += count
    ordered = sorted(sums.items(), key=lambda item: -sum(item[1].values()))
    rows = [
        (
            words.spaced(name),
            words.name(by),
            reasons.of_event(name, reason) if reason else words.spaced(reason),
            words.whole(sum(by_node.values())),
            *(words.whole(by_node.get(node, 0)) for node in facts.nodes),
        )
        for (name, by, reason), by_node in ordered[:20]
    ]
    heads = ("what", "by", "reason", "all", *(words.name(node, 20) for node in facts.nodes))
    note = "" if len(ordered) <= 20 else f"The first 20 of {len(ordered)}."
    return Section(
        "refusals",
        "Refusals",
        "What was refused, of all nodes together, by the plugin or the limiter's rule that refused it: connects "
        "(authentication), publishing and subscribing (authorization), and what a limit did not let in.",
        "authentication refused, again and again and from one hour to the next: a device has an old password, or "
        "somebody tries passwords. A limiter's rule that refuses all day is too tight for what is usual.",
        plots,
        [Grid("By rule and reason", heads, rows, texts=3, note=note)] if rows else (),
        "" if plots else _missing(facts, "refusals", _EVENTS_WHY),
    )


def _shadow(facts: Facts, painter: Painter) -> Section:
    plots = _there(painter.shadow())
    names = ("limiter.shadow_blocked", "limiter.blocked", "limiter.delayed")
    rules = sorted({rule for _, rule in facts.rule_totals})
    totals = {rule: [facts.rule_totals.get((name, rule), 0) for name in names] for rule in rules}
    ordered = sorted(rules, key=lambda rule: [-n for n in totals[rule]])
    rows = [(words.name(rule, 60), *(words.whole(n) for n in totals[rule])) for rule in ordered[:25]]
    heads = ("rule", "in the shadow: would have refused", "refused", "delayed")
    silent = not plots and bool(rows)
    return Section(
        "shadow",
        "Limiter rules, and what they would have done",
        "Packets that rules in the shadow (shadow = true) would have refused, and did not. A packet counts under "
        "each rule that would have refused it, of its client and of its topic, say: rules don't add up. Rules that "
        "kinmqtt-metrics rules has learned begin like that."
        + (" No rule in the shadow would have refused anything in this span." if silent else ""),
        "a rule that would have refused much while everything was well: don't switch it on, learn again over a "
        "span in which that was usual, or with a larger --factor. A rule that is "
        "quiet in good times and counts in bad ones is a good one.",
        plots,
        [Grid("By rule, all nodes", heads, rows, note=_of_all(len(rows), len(rules)))] if rows else (),
        ""
        if plots or rows
        else "No rule of a limiter is in the table rates. The plugin sentinel_limiter counts by rule.",
    )


def _tops(facts: Facts, painter: Painter) -> Section:
    plots = _there(painter.top_clients(), painter.top_topics())
    grids = []
    for title, column, found, rest in (
        ("Clients", "client", facts.clients, facts.clients_rest),
        ("Topics", "topic", facts.topics, facts.topics_rest),
    ):
        if not found:
            continue
        everything = [sum(n[i] for by_node in found.values() for n in by_node.values()) + rest[i] for i in (0, 1)]
        rows = []
        for name, by_node in found.items():
            messages, size = (sum(n[i] for n in by_node.values()) for i in (0, 1))
            nodes = words.listed([words.name(node, 20) for node in facts.nodes if node in by_node])
            rows.append(
                (
                    words.name(name, 60),
                    nodes,
                    words.whole(messages),
                    words.size(size),
                    words.share(size, everything[1]),
                )
            )
        rows.append(
            (
                "all others",
                "",
                words.whole(rest[0]),
                words.size(rest[1]),
                words.share(rest[1], everything[1]),
            )
        )
        heads = (column, "at", "messages", "bytes", "share of the bytes")
        grids.append(Grid(title, heads, rows, texts=2, folded=True))
    return Section(
        "tops",
        "Who publishes, and to what",
        "The clients that published most and the topics to which most was published, by the bytes of the PUBLISH "
        "packets, each bar divided by node. Summed over the windows in which a name was among the top of its "
        "node; what it published in others counts for all others, so a bar says at least so much.",
        "one client with a large share that was not there yesterday, or a name that nobody knows.",
        plots,
        grids,
        ""
        if plots
        else _missing(
            facts, "top_clients", "Nobody published, or the broker's samples have no traffic (an older sink)."
        ),
    )


def _everything(facts: Facts) -> Section:
    names = sorted({name for _, name in facts.totals})
    counters = {(node, name): value for (node, name), value in facts.totals.items()}
    grids = []
    counter_rows = [
        (
            words.name(name),
            words.name(facts.units.get(name, "")),
            words.whole(facts.total(name)),
            *(words.whole(counters.get((node, name), 0)) for node in facts.nodes),
        )
        for name in names
    ]
    nodes = [words.name(node, 20) for node in facts.nodes]
    if counter_rows:
        heads = ("counter", "unit", "all", *nodes)
        grids.append(Grid("Every counter, exact", heads, counter_rows, texts=2, folded=True))
    sums: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (node, name, reason), count in facts.events.items():
        sums[name, reason][_node_of(facts, node)] += count
    event_rows = [
        (
            words.spaced(name),
            reasons.of_event(name, reason) if reason else "",
            words.whole(sum(by_node.values())),
            *(words.whole(by_node.get(node, 0)) for node in facts.nodes),
        )
        for (name, reason), by_node in sorted(sums.items())
    ]
    if event_rows:
        grids.append(
            Grid(
                "Every event",
                ("event", "reason", "all", *nodes),
                event_rows[:80],
                2,
                _of_all(min(80, len(event_rows)), len(event_rows)),
                True,
            )
        )
    read = [(name, words.whole(rows)) for name, rows in sorted(facts.rows.items())]
    grids.append(Grid("Rows that were read", ("table", "rows"), read, folded=True))
    return Section(
        "everything",
        "Everything that was counted",
        "All counters and events of the span as sums: exact, each record once, as the tables have them.",
        "",
        (),
        grids,
    )


# Parts of sentences and of tables


def _there(*plots: Plot | None) -> list[Plot]:
    return [plot for plot in plots if plot is not None]


def _has(totals: Mapping[tuple[str, str], int], name: str) -> bool:
    return any(counter == name for _, counter in totals)


def _highest(line: Line) -> int | None:
    return None if not len(line) or np.isnan(line).all() else int(np.nanargmax(line))


def _worst(lines: Iterable[tuple[str, Line]]) -> tuple[str, int, float] | None:
    best: tuple[str, int, float] | None = None
    for node, line in lines:
        at = _highest(line)
        if at is not None and (best is None or line[at] > best[2]):
            best = (node, at, float(line[at]))
    return best


def _when(facts: Facts, step: int) -> str:
    begins_s = max(facts.axis.begins_s[step], facts.axis.span.start_s)
    return f"in the {words.duration(facts.axis.step_s)} from {words.moment(begins_s)} UTC"


def _gaps(facts: Facts) -> list[str]:
    """Nodes whose counters are untold for some steps between others; since when.

    Where a window has one sample, one that came a little late leaves a window empty, and the next one has two: that
    is no gap.
    """
    least = 2 if facts.samples <= 1 and facts.axis.step_s <= facts.window_s else 1
    told = []
    for node in facts.nodes:
        lines = [line for (of, _), line in facts.rates.items() if of == node]
        if not lines:
            continue
        there = np.flatnonzero(~np.isnan(together(lines)))
        inner = np.arange(there[0], there[-1] + 1)
        missing = np.setdiff1d(inner, there)
        runs = np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1)
        missing = np.concatenate([run for run in runs if len(run) >= least] or [missing[:0]])
        if len(missing):
            times = words.moment(float(facts.axis.begins_s[missing[0]]))
            told.append(
                f"{words.name(node)} ({words.duration(len(missing) * facts.axis.step_s)}, first at {times} UTC)"
            )
    return told


_SKETCH_WORDS: Final = (
    "Percentiles are those of all windows together, read from the sketches in the tables: exact below 200 values, "
    "and beyond that up to 1.3 in 100 ranks away."
)
_GAUGE_WORDS: Final = (
    f"Of the samples in each step, half were no higher than p50, and 1 in 100 was higher than p99. {_SKETCH_WORDS}"
)
_LENGTH_WORDS: Final = f"Half lasted no longer than p50, and 1 in 100 longer than p99. {_SKETCH_WORDS}"


def _gauge_grid(facts: Facts, names: Sequence[str], folded: bool = False) -> list[Grid]:
    rows = [
        (
            words.name(name),
            words.name(node),
            *(words.short(v) for v in (line.low, line.whole_mean, line.high)),
        )
        for name in names
        for node in facts.nodes
        if (line := facts.gauges.get((node, name))) is not None
    ]
    title = "The whole span"
    return [Grid(title, ("gauge", "node", "lowest", "mean", "highest"), rows, texts=2, folded=folded)] if rows else []


def _cross(
    title: str, head: str, facts: Facts, totals: Mapping[tuple[str, str], int], label: Callable[[str], str]
) -> Grid | None:
    sums: dict[str, int] = defaultdict(int)
    for (_, key), count in totals.items():
        sums[key] += count
    rows = [
        (label(key), words.whole(whole), *(words.whole(totals.get((node, key), 0)) for node in facts.nodes))
        for key, whole in sorted(sums.items(), key=lambda item: -item[1])[:20]
    ]
    return Grid(title, (head, "all", *(words.name(node, 20) for node in facts.nodes)), rows) if rows else None


def _node_of(facts: Facts, node: str) -> str:
    return OTHER_NODES if node in facts.others else node


def _of_all(shown: int, there: int) -> str:
    return "" if shown >= there else f"The first {shown} of {words.whole(there)}."


def _missing(facts: Facts, table: str, why: str) -> str:
    if any(left.path.startswith(f"{table}/") for left in facts.left_out):
        return f"No data: files of the table {table} could not be read (see above)."
    if facts.rows.get(table):
        return f"No data: the table {table} has rows in this span, but none that this plot is made of. {why}"
    return f"No data in the table {table} for this span. {why}"
