"""Writes what the documentation takes from the code: hooks, settings, state tables, metrics, answers to mistakes.

    python docs/generate.py            rewrites the parts between `<!-- generated: NAME -->` and `<!-- end -->`
    python docs/generate.py --check    says which pages are stale, and changes nothing

The prose around the parts is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

from kinmqtt.broker.statistics import Statistics
from kinmqtt.builtins.auto_subscriptions import TemplateSettings
from kinmqtt.builtins.bans import BanSettings
from kinmqtt.builtins.delayed import DelayedSettings
from kinmqtt.builtins.rate_limits import RateLimitSettings, RuleSettings
from kinmqtt.builtins.scram import ScramSettings
from kinmqtt.builtins.share_strategy import ShareStrategySettings
from kinmqtt.builtins.topic_rewrite import RewriteSettings
from kinmqtt.config import PluginSettings, ServiceSettings
from kinmqtt.mqtt.connection_state import TABLE, TRANSITIONS, State
from kinmqtt.mqtt.packets import PacketType
from kinmqtt.mqtt.qos_state import OUTGOING, FlightStage
from kinmqtt.mqtt.reasons import connack_code, has_connack_code
from kinmqtt.settings import (
    BrokerSettings,
    LimitSettings,
    ListenerLimitSettings,
    ListenerSettings,
    TlsSettings,
    WebSocketSettings,
)
from kinmqtt.settings.defaults import MachineDefault
from kinmqtt_metrics.tables import RAW, TABLES
from kinmqtt_rules.fields import EVENTS, MESSAGE_FIELDS
from kinmqtt_rules.functions import FUNCTIONS
from kinmqtt_spi.hookspecs import HOOKSPEC_MODULES
from kinmqtt_spi.markers import traits_of
from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.bridge import SendSettings
from kinmqtt_spi.services.event import HoldBounds
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.settings import describe
from kinmqtt_spi.testing.behaviours import behaviours_of

DOCS = Path(__file__).parent
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
INCLUDED = re.compile(r"(<!-- included: (?P<source>\S+)(?: as \S+)? -->\n\n```\w*\n).*?(```\n)", re.DOTALL)


def main(arguments: Sequence[str]) -> int:
    """Write or check every page; the exit status is 1 where a page was stale and is only checked."""
    stale = [page for page in sorted(DOCS.glob("*.md")) if page.read_text(encoding="utf-8") != rendered(page)]
    for page in stale:
        if "--check" not in arguments:
            page.write_text(rendered(page), encoding="utf-8")
        print(f"{page.name} {'is stale' if '--check' in arguments else 'written'}")
    return int(bool(stale) and "--check" in arguments)


def rendered(page: Path) -> str:
    """A page with its generated parts as the code has them now."""
    text = PART.sub(lambda match: match[1] + part(match["name"]) + match[3], page.read_text(encoding="utf-8"))
    return INCLUDED.sub(lambda match: match[1] + included(match["source"]) + match[3], text)


def included(source: str) -> str:
    """A tested file, as it is."""
    return (DOCS.parent / source).read_text(encoding="utf-8")


def part(name: str) -> str:
    """One generated part, by its name: ``hooks-FAMILY``, ``behaviours-FAMILY``, or of ``PARTS``."""
    if name.startswith("behaviours-"):
        return behaviours(name.removeprefix("behaviours-"))
    if name.startswith("hooks-"):
        return hooks(name.removeprefix("hooks-"))
    return PARTS[name]()


def hooks(family: str) -> str:
    """The hooks of a family, each under its exact signature."""
    module = next(m for m in HOOKSPEC_MODULES if m.__name__.endswith(f".{family}"))
    tree = ast.parse(inspect.getsource(module))
    return "\n" + "\n".join(_hook(module, node) for node in tree.body if isinstance(node, ast.FunctionDef)) + "\n"


def behaviours(family: str) -> str:
    """The numbered behaviours of a family's suites, with their flags and what their fixtures answer."""
    module = import_module(f"kinmqtt_spi.testing.{family}")
    parts = []
    for name, suite in vars(module).items():
        if isinstance(suite, type) and suite.__module__ == module.__name__ and name.endswith("Contract"):
            rows = [
                (each.number, each.promise.replace("``", "`"), f"`{each.needs}`" if each.needs else "")
                for each in behaviours_of(suite)
            ]
            header = ("number", "promise", "asked for with")
            about = paragraphs(suite)[0]
            parts.append(f"`kinmqtt_spi.testing.{family}.{name}`: {about}\n{flags(suite)}{table(header, rows)}")
            parts += [fields(case) for case in cases_of(suite, module)]
    return "\n" + "".join(parts)


def _hook(module: Any, node: ast.FunctionDef) -> str:
    function = getattr(module, node.name)
    traits = traits_of(function)
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    lines = [f"### `{node.name}({ast.unparse(node.args)}){returns}`", ""]
    facts = [traits.kind.value, "answers at once" if traits.synchronous else "may be awaited"]
    if traits.kind.value == "notify":
        facts[1] = "told in a later turn"
        facts.append("time limit `limits.notice_time_limit_s`")
    elif traits.time_limit_s is not None:
        facts.append(f"time limit {traits.time_limit_s:g} s")
    if traits.by_topic:
        facts.append("may be limited with `on_topics`")
    if traits.fails_open:
        facts.append("fails open, or closed with `fails_closed`")
    lines += [f"*{' · '.join(facts)}*", ""]
    for paragraph in (inspect.getdoc(function) or "").replace("``", "`").split("\n\n"):
        if paragraph.startswith("Called:"):
            lines += _bullets(paragraph)
        else:
            lines += [" ".join(paragraph.split()), ""]
    return "\n".join(lines)


def _bullets(paragraph: str) -> list[str]:
    """The four lines of a hook's docstring as a list."""
    parts = re.split(r"\n?(Called|Combines|If it raises|Threading):", paragraph)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [*(f"- **{label}:** {' '.join(text.split())}" for label, text in pairs), ""]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n" + "\n".join(lines) + "\n\n"


def rules_fields() -> str:
    """The fields that rules have of a message."""
    return table(("field", "of a message"), [(f"`{name}`", text) for name, (_, text) in MESSAGE_FIELDS.items()])


def rules_events() -> str:
    """The events that rules can select from."""
    rows = [
        (
            f"`{each.name}`",
            each.about,
            "yes" if each.is_durable else "no",
            ", ".join(f"`{name}`" for name in each.fields),
        )
        for each in EVENTS.values()
    ]
    return table(("topic", "when", "durable", "fields"), rows)


def rules_functions() -> str:
    """The functions of rules, by group."""
    groups = dict.fromkeys(each.group for each in FUNCTIONS.values())
    rows = [
        (
            f"`{each.signature}`",
            each.help,
            f"`{each.example[0]}` = `{_literal(each.example[1])}`",
            "✓" * bool(each.spark),
        )
        for group in groups
        for each in sorted(FUNCTIONS.values(), key=lambda each: each.name)
        if each.group == group
    ]
    return table(("function", "value", "example", "Spark"), rows)


def _literal(value: object) -> str:
    """A value of a rule as JSON, and a text as SQL writes it."""
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def pipeline_tables() -> str:
    """The tables of the data pipeline, with their columns."""
    rows = [
        (f"`{each.name}`", each.text, ", ".join(f"`{name}` {kind}" for name, kind in each.columns.items()))
        for each in TABLES
        if each is not RAW
    ]
    raw = (f"`{RAW.name}`", RAW.text, "those of a record, and `at` timestamp")
    return table(("table", "a row", "columns"), [raw, *rows])


def settings(settings_class: type[Any]) -> Callable[[], str]:
    """A settings class as a table; of a default that follows from the machine it says how."""
    words = {
        each.name: each.default.words
        for each in attrs.fields(settings_class)
        if isinstance(each.default, MachineDefault)
    }
    rows = [
        (f"`{row.key}`", row.type, words.get(row.key) or _shown(row.default), row.help)
        for row in describe(settings_class)
    ]
    return lambda: table(("key", "type", "default", "meaning"), rows)


def _shown(default: str) -> str:
    """A default as a cell: without one, the meaning says what applies."""
    return default if default in ("", "required") else f"`{default}`"


def flags(suite: type[Any]) -> str:
    """The flags of a suite, those that it inherits included."""
    rows = [
        (f"`{name}`", f"`{value}`", text)
        for each in suite.__mro__
        if each.__module__.startswith("kinmqtt_spi.testing.")
        for name, _, value, text in declared(each)
    ]
    return table(("flag", "by itself", "meaning"), rows)


def cases_of(suite: type[Any], module: Any) -> list[type[Any]]:
    """The classes of which a suite's fixture answers one, and those within."""
    source = inspect.getsource(suite)
    found = [each for name, each in vars(module).items() if name.endswith("Case") and f"{name}:" in source]
    inner = [
        each
        for name, each in vars(module).items()
        for case in found
        if isinstance(each, type) and each.__module__ == module.__name__ and f"[{name}]" in inspect.getsource(case)
    ]
    return found + list(dict.fromkeys(inner))


def fields(cls: type[Any], title: str = "`{}`: {}\n") -> str:
    """The fields of a class, or the members of an enumeration."""
    about = title.format(cls.__name__, paragraphs(cls)[0])
    if not (rows := declared(cls)):
        return about
    if issubclass(cls, Enum):
        header = ("member", "value", "meaning")
        return about + table(header, [(f"`{name}`", f"`{value}`", text) for name, _, value, text in rows])
    return about + table(
        ("field", "type", "default", "meaning"),
        [(f"`{name}`", f"`{kind}`", f"`{value}`" if value else "", text) for name, kind, value, text in rows],
    )


def declared(cls: type[Any]) -> list[tuple[str, str, str, str]]:
    """Name, type, default and meaning of what a class declares, in its own order."""
    body = _body(cls)
    found = []
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, kind = node.target.id, ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, kind = node.targets[0].id, ""
        else:
            continue
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = str(after.value.value) if is_text else ""  # type: ignore[attr-defined]
        if not name.startswith("_"):
            found.append((name, kind, _default(node.value), " ".join(plain(text).split())))
    return found


def _default(value: ast.expr | None) -> str:
    """A field's default as it is written; of `field(default=…)` what stands there."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        factory = f"{ast.unparse(given['factory'])}()" if "factory" in given else ""
        return ast.unparse(given["default"]) if "default" in given else factory
    return "" if value is None else ast.unparse(value)


def _body(cls: type[Any]) -> list[ast.stmt]:
    [node] = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    return node.body


def paragraphs(cls: type[Any]) -> list[str]:
    """A class's docstring."""
    return [" ".join(part.split()) for part in plain(inspect.getdoc(cls) or "").split("\n\n")]


def plain(text: str) -> str:
    """A docstring's markup as Markdown's."""
    return re.sub(r":\w+:`~?(?:kinmqtt_spi[\w.]*\.)?([\w.]+)`", r"`\1`", text).replace("``", "`")


def connection_table() -> str:
    """What is done with each packet in each state."""
    received = [packet for packet in PacketType if any(packet in row for row in TABLE.values())]
    rows = [
        (f"**{state.value}**", *(row[packet].value if packet in row else "error" for packet in received))
        for state, row in TABLE.items()
    ]
    return table(("state", *(packet.name for packet in received)), rows)


def transitions() -> str:
    """Which states may follow each state."""
    names = {state: ", ".join(after.value for after in State if after in TRANSITIONS[state]) for state in State}
    return table(
        ("state", "may be followed by"), [(f"**{state.value}**", after or "–") for state, after in names.items()]
    )


def outgoing() -> str:
    """What an acknowledgement leads to."""
    kinds = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP)
    rows = [
        (
            "no such identifier" if stage is None else f"**waits for {stage.name}**",
            *(OUTGOING[stage, kind].value for kind in kinds),
        )
        for stage in (*FlightStage, None)
    ]
    return table(("stage", *(kind.name for kind in kinds)), rows)


def metrics() -> str:
    """The broker's own counters."""
    registry = MetricRegistry()
    Statistics(registry)
    samples = registry.snapshot(0, "docs").samples
    labels = [", ".join(f"{key}={value}" for key, value in sample.labels.items()) for sample in samples]
    rows = [(f"`{s.name}`", f"`{label}`" if label else "", s.unit) for s, label in zip(samples, labels, strict=True)]
    return table(("counter", "labels", "unit"), rows)


def mistakes() -> str:
    """What a broker answers to each mistake: each is made before one in memory."""
    made = _mistakes()
    rows: dict[str, list[str]] = {}
    for site in made.sites():
        seen = [each for each in made.observed() if site.fits(each.text)]
        if seen and site.text not in rows:
            packets = sorted({each.packet for each in seen})
            rows[site.text] = [
                site.text,
                ", ".join(packets) if len(packets) < 8 else "any",
                ", ".join(sorted({each.clause for each in seen} - {""})) or "–",
                _answers(each.answer for each in seen if each.version == 5),
                _answers(each.answer for each in seen if each.version < 5),
            ]
    return table(("what is wrong", "in", "clause", "MQTT 5", "MQTT 3.1 and 3.1.1"), rows.values())


def _answers(answers: Iterable[str]) -> str:
    return ", ".join(sorted(set(answers))) or "–"


def closes() -> str:
    """Why else a connection is closed or refused, with the code of MQTT 5 and the return code of CONNACK before."""
    rows: dict[str, list[str]] = {}
    for close in _mistakes().closes():
        if close.reason is not None and close.text != "…":
            code = f"0x{close.reason:02X} {close.reason.name.lower().replace('_', ' ')}"
            old = "closed"
            if close.refuses and has_connack_code(close.reason, 4):
                old = f"CONNACK {connack_code(close.reason, 4)}"
            rows[close.text] = [close.text, code, old]
    ordered = sorted(rows.values(), key=lambda row: row[1:])
    return table(("why", "MQTT 5", "MQTT 3.1 and 3.1.1"), ordered)


def _mistakes() -> Any:
    """The module that makes them, which is a part of the tests."""
    for folder in ("spi/tests/harness", "core/tests/harness", "tests/harness"):
        path = str(DOCS.parent / folder)
        if path not in sys.path:
            sys.path.insert(0, path)
    return import_module("root_harness.protocol_errors")


PARTS: dict[str, Callable[[], str]] = {
    "rules-events": rules_events,
    "rules-fields": rules_fields,
    "rules-functions": rules_functions,
    "tables": pipeline_tables,
    "settings-broker": settings(BrokerSettings),
    "settings-limits": settings(LimitSettings),
    "settings-listener": settings(ListenerSettings),
    "settings-listener-limits": settings(ListenerLimitSettings),
    "settings-tls": settings(TlsSettings),
    "settings-websocket": settings(WebSocketSettings),
    "settings-events": settings(HoldBounds),
    "settings-outbox": settings(OutboxSettings),
    "settings-sending": settings(SendSettings),
    "settings-services": settings(ServiceSettings),
    "settings-plugins": settings(PluginSettings),
    "settings-rate-limits": settings(RateLimitSettings),
    "settings-rate-limit-rule": settings(RuleSettings),
    "settings-bans": settings(BanSettings),
    "settings-scram": settings(ScramSettings),
    "settings-auto-subscriptions": settings(TemplateSettings),
    "settings-topic-rewrite": settings(RewriteSettings),
    "settings-share-strategy": settings(ShareStrategySettings),
    "settings-delayed": settings(DelayedSettings),
    "connection-table": connection_table,
    "transitions": transitions,
    "outgoing": outgoing,
    "metrics": metrics,
    "mistakes": mistakes,
    "closes": closes,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
