"""A rule as Spark SQL, over a table with the messages: the same rows, or an error with its place.

Values of JSON have no type before they are looked at, so each part of a payload is read as the kind that its place
asks for, and only if it has that kind: as in the broker a text is no number. All numbers are doubles there, but whole
numbers where a whole number is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kinmqtt_rules.checking import CheckedRule, Output
from kinmqtt_rules.errors import RuleError
from kinmqtt_rules.functions import Kind
from kinmqtt_rules.spark_text import filled, name_of, quoted, topic_pattern
from kinmqtt_rules.tree import Call, Case, Constant, Name, Node, Step

PAYLOAD: Final = "try_validate_utf8(CAST(payload AS STRING))"
"""The payload as a text; NULL if it is not UTF-8."""

COLUMNS: Final[Mapping[str, tuple[str, Kind]]] = {
    "id": ("id", Kind.TEXT),
    "clientid": ("clientid", Kind.TEXT),
    "username": ("username", Kind.TEXT),
    "topic": ("topic", Kind.TEXT),
    "qos": ("CAST(qos AS BIGINT)", Kind.INTEGER),
    "retain": ("retain", Kind.BOOL),
    "publish_received_at": ("publish_received_at", Kind.INTEGER),
    "payload": (PAYLOAD, Kind.TEXT),
}
"""The columns of the table, each with its kind. `payload` is binary, `publish_received_at` in ms since 1970."""

DOCUMENT: Final = f"try_parse_json({PAYLOAD})"
"""The payload's value, if it is JSON."""

_TYPES: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.NUMBER: ("^(BIGINT|DOUBLE|FLOAT|DECIMAL)", "double"),
    Kind.INTEGER: ("^BIGINT$", "bigint"),
    Kind.TEXT: ("^STRING$", "string"),
    Kind.BOOL: ("^BOOLEAN$", "boolean"),
    Kind.BINARY: ("^STRING$", "string"),
}
"""By kind: what `schema_of_variant` says of it, and the type that it is read as."""

_SCALARS: Final = (Kind.NUMBER, Kind.TEXT, Kind.BOOL)
_COMPARISONS: Final = frozenset(("eq", "neq", "gt", "gte", "lt", "lte", "in", "nin"))
_ORDERED: Final = frozenset(("gt", "gte", "lt", "lte"))
_SAME_KIND: Final = frozenset(("coalesce", "nvl"))


def spark_sql(rule: CheckedRule, view: str = "messages") -> str:
    """Return the query; raises :class:`RuleError` for what Spark can't do as the broker does."""
    return _Writer(rule).query(view)


def _null(wanted: Kind) -> str:
    return f"CAST(NULL AS {_TYPES[wanted][1]})" if wanted in _TYPES else "NULL"


class _Writer:
    """Writes one rule's query."""

    def __init__(self, rule: CheckedRule) -> None:
        self._rule = rule

    def query(self, view: str) -> str:
        """Return the query over a table."""
        rule = self._rule
        if rule.events:
            raise RuleError(rule.sql, 0, "Spark has no events of rules: select from topics")
        conditions = [" OR ".join(f"topic RLIKE {quoted(topic_pattern(each))}" for each in rule.filters)]
        if rule.where is not None:
            conditions.append(self._text(rule.where, Kind.BOOL))
        where = "\n  AND ".join(f"({each})" for each in conditions)
        source = f"(SELECT *, {DOCUMENT} AS document FROM {name_of(view)})"
        if rule.foreach is not None:
            array = self._variant(rule.foreach)
            is_array = f"schema_of_variant({array}) LIKE 'ARRAY<%'"
            items = f"CASE WHEN {is_array} THEN CAST({array} AS ARRAY<VARIANT>) END"
            source += f"\nLATERAL VIEW explode({items}) AS element"
        query = f"SELECT {self._columns()}\nFROM {source}\nWHERE {where}"
        if rule.incase is not None:
            query += f"\n  AND ({self._text(rule.incase, Kind.BOOL)})"
        return query

    def _columns(self) -> str:
        if not self._rule.outputs:
            return "element"
        return ",\n       ".join(text for output in self._rule.outputs for text in self._column(output))

    def _column(self, output: Output) -> list[str]:
        if output.node is None:
            return [f"{text} AS {name_of(name)}" for name, (text, _) in COLUMNS.items()]
        node, kind = output.node, self._kind(output.node)
        is_part = kind is Kind.ANY and not isinstance(node, Call | Case)
        if kind is Kind.ANY and not is_part:
            raise self._fail(
                node, "Spark can't tell of which kind this value is: compare it, or pass it to a function"
            )
        text = self._variant(node) if is_part else self._text(node, kind)
        return [f"{text} AS {name_of('.'.join(output.path))}"]

    # Kinds

    def _kind(self, node: Node) -> Kind:
        """Return what a value always is, if it is not NULL; ANY for a part of JSON."""
        match node:
            case Constant():
                kinds = {int: Kind.INTEGER, float: Kind.NUMBER, str: Kind.TEXT, bool: Kind.BOOL}
                return kinds.get(node.kind, Kind.ANY)
            case Name() if node.name in COLUMNS and not self._is_element(node):
                return COLUMNS[node.name][1]
            case Name() | Step():
                return Kind.ANY
            case Case():
                return self._joint([*(result for _, result in node.branches), node.otherwise])
            case Call():
                if node.function.name in _SAME_KIND:
                    return self._joint(node.arguments)
                return self._common(node.arguments) if node.function.name == "add" else node.function.result

    def _joint(self, nodes: Sequence[Node]) -> Kind:
        """Return the kind of all; ANY if one of them may be of any."""
        typed = [node for node in nodes if not (isinstance(node, Constant) and node.value is None)]
        return Kind.ANY if any(self._kind(node) is Kind.ANY for node in typed) else self._common(typed)

    def _common(self, nodes: Sequence[Node]) -> Kind:
        """Return the kind of those that have one; ANY if they differ."""
        kinds = {self._kind(node) for node in nodes if not (isinstance(node, Constant) and node.value is None)}
        kinds.discard(Kind.ANY)
        if kinds == {Kind.INTEGER, Kind.NUMBER}:
            return Kind.NUMBER
        return kinds.pop() if len(kinds) == 1 else Kind.ANY

    # Values

    def _text(self, node: Node, wanted: Kind) -> str:
        """Return the value as a kind; NULL if it has another one."""
        match node:
            case Constant():
                return self._constant(node, wanted)
            case Case():
                branches = " ".join(
                    f"WHEN {self._text(condition, Kind.BOOL)} THEN {self._text(result, wanted)}"
                    for condition, result in node.branches
                )
                return f"(CASE {branches} ELSE {self._text(node.otherwise, wanted)} END)"
            case Call() if node.function.name in _SAME_KIND or node.function.name == "add":
                return self._call(node, wanted)
            case Call():
                return self._fitted(self._call(node, wanted), node.function.result, wanted, node)
            case Name() if node.name in COLUMNS and not self._is_element(node):
                text, kind = COLUMNS[node.name]
                if node.name == "payload" and wanted is Kind.BINARY:
                    return node.name  # whatever its bytes are
                return self._fitted(text, kind, wanted, node)
            case _:
                return self._read(node, wanted)

    def _constant(self, node: Constant, wanted: Kind) -> str:
        if node.value is None:
            return _null(wanted)
        if isinstance(node.value, bool):
            text, kind = str(node.value).lower(), Kind.BOOL
        elif isinstance(node.value, str):
            text, kind = quoted(node.value), Kind.TEXT
        elif isinstance(node.value, int):
            text, kind = f"{node.value}L", Kind.INTEGER
        else:
            text, kind = f"{node.value!r}D", Kind.NUMBER
        return self._fitted(f"({text})", kind, wanted, node)

    def _fitted(self, text: str, kind: Kind, wanted: Kind, node: Node) -> str:
        if wanted in (kind, Kind.ANY) or {kind, wanted} == {Kind.TEXT, Kind.BINARY}:
            return text
        if {kind, wanted} == {Kind.INTEGER, Kind.NUMBER}:
            if wanted is Kind.NUMBER:
                return f"CAST({text} AS DOUBLE)"
            raise self._fail(node, "it may be no whole number, which Spark can't tell from one")
        return _null(wanted)

    def _read(self, node: Node, wanted: Kind) -> str:
        """Return a part of JSON as a kind."""
        variant = self._variant(node)
        if wanted is Kind.ANY:
            return variant
        if wanted not in _TYPES:
            raise self._fail(node, f"Spark can't read a part of JSON as {wanted.value}")
        pattern, kind = _TYPES[wanted]
        is_kind = f"schema_of_variant({variant}) RLIKE {quoted(pattern)}"
        return f"(CASE WHEN {is_kind} THEN try_variant_get({variant}, '$', '{kind}') END)"

    def _variant(self, node: Node) -> str:
        """Return a part of JSON as a variant."""
        steps: list[str] = []
        while isinstance(node, Step):
            steps.append(self._step(node))
            node = node.of
        if not isinstance(node, Name):
            raise self._fail(node, "Spark can only read parts of the payload, not of what a function made")
        path = quoted("$" + "".join(reversed(steps)))
        if self._is_element(node):
            return f"try_variant_get(element, {path}, 'variant')"
        if node.name != "payload" or not steps:
            raise self._fail(node, f"there is no part of {node.name!r} in Spark")
        return f"try_variant_get(document, {path}, 'variant')"

    def _step(self, node: Step) -> str:
        if isinstance(node.key, int):
            if node.key < 0:
                raise self._fail(node, "Spark can't count an index from the end")
            return f"[{node.key - 1}]"
        if any(sign in node.key for sign in "'\"\\[].") or not node.key:
            raise self._fail(node, f"Spark can't read a part with the name {node.key!r}")
        return f"['{node.key}']"

    def _is_element(self, node: Name) -> bool:
        return self._rule.foreach is not None and node.name == self._rule.element

    # Calls

    def _call(self, node: Call, wanted: Kind) -> str:
        function = node.function
        if function.name == "topic_matches":
            return self._topic_matches(node)
        if function.spark is None:
            raise self._fail(node, f"Spark has no function {function.name!r} that does the same")
        if function.name == "is_null":
            return self._is_null(node.arguments[0])
        if function.name in _COMPARISONS:
            return self._comparison(node)
        if function.name in _SAME_KIND or function.name == "add":
            return self._of_one_kind(node, wanted)
        texts = [self._text(argument, function.kind_of(place)) for place, argument in enumerate(node.arguments)]
        if function.name in ("is_true", "is_false"):
            texts = [self._text(node.arguments[0], Kind.BOOL)]
        return filled(function.spark, texts)

    def _is_null(self, node: Node) -> str:
        """Return whether a value is NULL, JSON's null included."""
        kind = self._kind(node)
        if isinstance(node, Name) and node.name == "payload" and not self._is_element(node):
            kind = Kind.BINARY
        if kind is not Kind.ANY or isinstance(node, Constant):
            return f"({self._text(node, kind)} IS NULL)"
        variant = self._variant(node)
        return f"({variant} IS NULL OR is_variant_null({variant}))"

    def _comparison(self, node: Call) -> str:
        kind = self._common(node.arguments)
        template = node.function.spark or ""
        is_membership = node.function.name in ("in", "nin")
        if is_membership and len(node.arguments) == 2 and self._kind(node.arguments[1]) is Kind.ANY:
            raise self._fail(node, "Spark can't tell whether IN has an array here")
        if is_membership and self._joint(node.arguments[:1]) is self._joint(node.arguments[1:]) is Kind.ANY:
            raise self._fail(node, "Spark can't tell of which kind the list of IN is")
        if kind is not Kind.ANY:
            kind = Kind.NUMBER if kind is Kind.INTEGER else kind
            if kind is Kind.BOOL and node.function.name in _ORDERED:
                return "CAST(NULL AS BOOLEAN)"
            return filled(template, [self._text(argument, kind) for argument in node.arguments])
        kinds = {self._kind(argument) for argument in node.arguments} - {Kind.ANY}
        if kinds or is_membership:
            raise self._fail(node, "Spark can't compare values of several kinds")
        scalars = _SCALARS[:2] if node.function.name in _ORDERED else _SCALARS
        each = [filled(template, [self._text(argument, kind) for argument in node.arguments]) for kind in scalars]
        return f"coalesce({', '.join(each)})"

    def _of_one_kind(self, node: Call, wanted: Kind) -> str:
        """Return coalesce, nvl or + for what is asked for: values of another kind count as NULL there."""
        kind = self._kind(node) if wanted is Kind.ANY else wanted
        if kind is Kind.ANY:
            raise self._fail(node, f"Spark can't tell of which kind {node.function.name} is here")
        if node.function.name != "add":
            *first, last = node.arguments
            branches = " ".join(f"WHEN NOT {self._is_null(each)} THEN {self._text(each, kind)}" for each in first)
            return f"(CASE {branches} ELSE {self._text(last, kind)} END)"
        if kind in (Kind.TEXT, Kind.BINARY):
            return filled("concat({0}, {1})", [self._text(argument, kind) for argument in node.arguments])
        if kind not in (Kind.INTEGER, Kind.NUMBER):
            return _null(wanted)
        sum = filled(node.function.spark or "", [self._text(argument, Kind.NUMBER) for argument in node.arguments])
        return self._fitted(sum, Kind.NUMBER, wanted, node)

    def _topic_matches(self, node: Call) -> str:
        topic, filter = node.arguments
        if not isinstance(filter, Constant) or not isinstance(filter.value, str):
            raise self._fail(node, "Spark needs a constant topic filter behind =~")
        return f"({self._text(topic, Kind.TEXT)} RLIKE {quoted(topic_pattern(filter.value))})"

    def _fail(self, node: Node, text: str) -> RuleError:
        return RuleError(self._rule.sql, node.offset, text)
