"""The file of rules, as the limiter reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kinmqtt_metrics import formatting
from kinmqtt_metrics.learning import sample_size
from kinmqtt_metrics.learning.model import EXEMPT, KINDS, Kind, Learned, Options, Replayed, Rule, Summed, Usual

FIRST_WORDS: Final = "# Limits that kinmqtt-metrics rules learned"
_MOST_VALUES: Final = 100_000


def text_of(learned: Learned, options: Options, source: str, made_at_s: float) -> str:
    """The rules as the limiter reads them."""
    return "\n".join(_lines(learned, options, source, made_at_s)) + "\n"


def _lines(learned: Learned, options: Options, source: str, made_at_s: float) -> Iterator[str]:
    yield f"{FIRST_WORDS} on {formatting.moment(made_at_s)} UTC."
    yield (
        f"# From: {formatting.name(source, 200)}, table usual, {formatting.moment(learned.start_s)} to "
        f"{formatting.moment(learned.end_s)} UTC,"
    )
    yield (
        f"# {learned.windows} windows of {options.over_s} s, nodes "
        f"{formatting.listed([formatting.name(n) for n in learned.nodes], 10)}."
    )
    yield (
        f"# Options: --quantile {options.quantile:g} --factor {options.factor:g} --over {options.over_s} "
        f"--min-windows {options.min_windows} --others {options.others:g} --least {options.least:g} --rules "
        f"{options.most_rules}{'' if options.topics else ' --no-topics'}"
    )
    for kind, seen in learned.seen.items():
        yield (
            f"# {formatting.some(seen, kind).capitalize()} seen, of which {learned.unknown[kind]} in fewer than "
            f"{options.min_windows} windows: too few to learn from."
        )
    if learned.summed.messages:
        yield "#"
        for sentence in summed_words(learned.summed):
            yield f"# {sentence}"
        yield "# Usual rates and limits are as high as these messages allow."
    little = sample_size.sentences(learned, options)
    if little:
        yield "#"
        for sentence in little:
            yield f"# {sentence}"
    yield "#"
    yield "# Usual is the rate that was not exceeded in so many of the windows in which there was something at all."
    if options.shadow:
        yield (
            "# All rules are in the shadow (shadow = true): they count what they would have refused, and refuse "
            "nothing."
        )
        yield (
            "# Look at limiter.shadow_blocked, then switch them on: kinmqtt-metrics rules --enable THIS-FILE "
            "[--rule NAME]"
        )
    if any(rule.kind == "topic" for rule in learned.rules):
        yield (
            "# Rules about topics look at each packet: the limiter needs them when it starts, or watch_topics = true."
        )
    for kind in KINDS:
        yield from _rules_of(kind, [rule for rule in learned.rules if rule.kind == kind], learned, options)


def _rules_of(kind: Kind, rules: Sequence[Rule], learned: Learned, options: Options) -> Iterator[str]:
    shadow = f"shadow = {'true' if options.shadow else 'false'}"
    named = [rule for rule in rules if rule.of is not None]
    for rule in named:
        assert rule.of is not None and rule.usual is not None
        yield ""
        yield "[[flow]]"
        yield (
            f"# usual {_usual(rule.usual)}, at most {rule.usual.most:.3g}/s, in {rule.usual.windows} windows; "
            + _in_words(learned.replayed.get(rule.name, Replayed()))
        )
        yield from _from_little(rule, learned, options)
        yield f"name = {_toml(rule.name)}"
        # A bare "*" would be every client there is.
        yield f"{kind} = [{_toml(rule.of)}]"
        yield f'per = "{kind}"'
        yield f"count = {number(rule.count)}"
        yield f"burst = {number(rule.burst)}"
        yield shadow
    for rule in rules:
        if rule.of is None:
            yield ""
            yield "[[param]]"
            yield f"# each {kind} without a rule of its own; {_in_words(learned.replayed.get(rule.name, Replayed()))}"
            yield from _from_little(rule, learned, options)
            yield f"name = {_toml(rule.name)}"
            yield f'param = "{kind}"'
            yield f"count = {number(rule.count)}"
            yield f"burst = {number(rule.burst)}"
            yield f"max_values = {min(_MOST_VALUES, max(1000, 2 * learned.seen.get(kind, 0)))}"
            yield shadow
            if named:
                yield ""
                yield "[param.items]"
                yield "# These have rules of their own above, and no limit here."
                yield from (f"{_toml(other.of or '')} = {EXEMPT}" for other in named)


def _from_little(rule: Rule, learned: Learned, options: Options) -> Iterator[str]:
    little = sample_size.about(rule, learned, options)
    if little is not None:
        yield f"# Warning: learned from {little}: learn for longer before you enable it."


def _usual(usual: Usual) -> str:
    if usual.told is None:
        return f"{usual.rate:.3g}/s"
    return f"{usual.told:.3g}/s as far as it is told, up to {usual.rate:.3g}/s with (others)"


def summed_words(summed: Summed) -> list[str]:
    """Sentences for a person: how much nobody can put down to a client or topic."""
    return [
        f"{formatting.share(summed.messages, summed.of)} of the messages ({formatting.whole(summed.messages)} of "
        f"{formatting.whole(summed.of)}) are in (others), in "
        f"{formatting.some(summed.windows, 'window')}: their clients",
        "and topics are unknown, so they are in no figure of what was published or would be refused. A larger",
        "max_pairs in [plugins.metrics] reports more.",
    ]


def _in_words(replayed: Replayed) -> str:
    if not replayed.excess:
        return f"would have refused none of {formatting.some(replayed.messages, 'message')}"
    return (
        f"would have refused about {formatting.whole(replayed.excess)} of "
        f"{formatting.some(replayed.messages, 'message')}, in {formatting.some(replayed.windows_over, 'window')}"
    )


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _toml(text: str) -> str:
    """A basic string; whatever can't be seen is written as its number."""
    out = []
    for c in text:
        if c in '"\\':
            out.append(f"\\{c}")
        elif c.isprintable():
            out.append(c)
        else:
            out.append(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}")
    return f'"{"".join(out)}"'
