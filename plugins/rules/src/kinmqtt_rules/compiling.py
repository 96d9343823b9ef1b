"""Compiles a checked rule to one Python function, which ``kinmqtt rules show`` prints.

The function names nothing but our own functions and the fields, its literals are written by ``repr``, and it has no
built-ins. What occurs more than once is computed once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from kinmqtt_rules import runtime
from kinmqtt_rules.checking import CheckedRule, Output
from kinmqtt_rules.fields import Read, Subject, reader_of
from kinmqtt_rules.functions import TYPES, Function, Kind, Tally, bind
from kinmqtt_rules.runtime import Row
from kinmqtt_rules.tree import Call, Case, Constant, Name, Node, Step, children

_SIGNS: Final = {"eq": "==", "neq": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_PLAIN_TYPES: Final[Mapping[type[object], str]] = {int: "number", float: "number", str: "text"}


@frozen(slots=True, eq=False)
class CompiledRule:
    """A rule as a function."""

    source: str
    """The function's Python."""
    run: Callable[[Subject], Sequence[Row] | None]
    """Returns the rows of a subject; ``None`` if WHERE is not true."""
    tally: Tally
    wants: Callable[[Any], bool] | None
    """Whether there may be rows for a payload's value (``None`` without JSON); ``None`` if WHERE begins otherwise."""


def compile_rule(rule: CheckedRule, name: str = "rule") -> CompiledRule:
    """Return the rule as a function; ``name`` is shown in tracebacks."""
    tally = Tally()
    writer = _Writer(rule, tally)
    source = writer.write()
    run = _made(source, writer.names, name)
    conditions = list(itertools.takewhile(_is_about_payload, [] if rule.where is None else _conjuncts(rule.where)))
    wants = None
    if conditions:
        tester = _Writer(rule, tally)
        wants = _made(tester.write_test(conditions), tester.names, name)
    return CompiledRule(source, run, tally, wants)


def _made(source: str, names: Mapping[str, Any], name: str) -> Any:
    space = {**names, "__builtins__": {}}
    exec(compile(source, f"<rule {name}>", "exec"), space)
    return space["rule"]


class _Writer:
    """Writes the function of one rule."""

    def __init__(self, rule: CheckedRule, tally: Tally) -> None:
        self._rule = rule
        self._tally = tally
        self.names: dict[str, Any] = {}
        """What the function may name."""
        self._calls: dict[tuple[Function, int], str] = {}
        self._numbers = itertools.count(1)
        self._written: dict[Node, str] = {}
        """The variables of what is computed already."""
        self._shared: frozenset[Node] = frozenset()
        self._lines: list[str] = []
        self._indent = 1
        self._has_document = False
        self._of_events = bool(rule.events)

    def write(self) -> str:
        """Return the function's Python."""
        rule = self._rule
        roots = [rule.where, rule.foreach, rule.incase, *(output.node for output in rule.outputs)]
        self._shared = frozenset(_shared(root for root in roots if root is not None))
        self._lines = ["def rule(s):"]
        if rule.where is not None:
            self._condition(rule.where, "return None")
        if rule.foreach is None:
            self._row(rule.outputs)
            self._line("return (row,)")
        else:
            self._loop(rule.foreach)
        return "\n".join(self._lines) + "\n"

    def write_test(self, conditions: Sequence[Node]) -> str:
        """Return the Python of a function that takes the payload's value: whether all conditions are true of it."""
        self._shared = frozenset(_shared(conditions))
        self._lines = ["def rule(payload):"]
        self._has_document = True
        for condition in conditions:
            self._condition(condition, "return False")
        self._line("return True")
        return "\n".join(self._lines) + "\n"

    def _loop(self, foreach: Node) -> None:
        self._line("rows = []")
        self._line(f"for element in {self._named('elements', runtime.elements)}({self._text(foreach)}):")
        self._indent += 1
        outside = dict(self._written)
        if self._rule.incase is not None:
            self._condition(self._rule.incase, "continue")
        if self._rule.outputs:
            self._row(self._rule.outputs)
            self._line("rows += (row,)")
        else:
            self._line("rows += (element,)")
        self._written = outside
        self._indent -= 1
        self._line("return rows")

    def _condition(self, node: Node, otherwise: str) -> None:
        for part in _conjuncts(node):
            self._line(f"if {self._truth(part)} is not True:")
            self._line(f"    {otherwise}")

    def _row(self, outputs: Sequence[Output]) -> None:
        pairs: list[str] = []
        later: list[str] = []
        for output in outputs:
            if output.node is None:
                fields = [(name, Name(name)) for name in self._rule.fields]
                pairs += [f"{name!r}: {self._text(node)}" for name, node in fields]
            elif later or len(output.path) > 1:
                later.append(self._put(output))
            else:
                pairs.append(f"{output.path[0]!r}: {self._text(output.node)}")
        self._line(f"row = {{{', '.join(pairs)}}}")
        for line in later:
            self._line(line)

    def _put(self, output: Output) -> str:
        assert output.node is not None
        keys = ", ".join(map(repr, output.path))
        text = self._text(output.node)
        if (
            output.path[0] == "payload"
            and len(output.path) > 1
            and any(each.node is None or each == Output(("payload",), Name("payload")) for each in self._rule.outputs)
        ):
            text = f"{text}, {self._payload()}"
            return f"{self._named('put_in_payload', runtime.put_in_payload)}(row, {keys}, {text})"
        return f"{self._named('put', runtime.put)}(row, {keys}, {text})"

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def _named(self, name: str, value: Any) -> str:
        self.names[name] = value
        return name

    def _text(self, node: Node) -> str:
        """Return the Python of an expression; what is shared is assigned to a variable first."""
        variable = self._written.get(node)
        if variable is not None:
            return variable
        if node in self._shared:
            text = self._expression(node)
            variable = f"v{next(self._numbers)}"
            self._line(f"{variable} = {text}")
            self._written[node] = variable
            return variable
        return self._expression(node)

    def _is_element(self, node: Name) -> bool:
        return self._rule.foreach is not None and node.name == self._rule.element

    def _truth(self, node: Node) -> str:
        """Return the Python of a condition; of constants only true is true."""
        return repr(node.value is True) if isinstance(node, Constant) else self._text(node)

    def _expression(self, node: Node) -> str:
        match node:
            case Constant():
                return node.text
            case Name():
                return "element" if self._is_element(node) else self._field(node.name)
            case Step(of=Name(name="payload") as of) if not self._is_element(of):
                return self._step(self._payload(), node.key)
            case Step():
                return self._step(self._text(node.of), node.key)
            case Call():
                return self._call(node)
            case Case():
                text = self._text(node.otherwise)
                for condition, result in reversed(node.branches):
                    text = f"({self._text(result)} if {self._truth(condition)} is True else {text})"
                return text

    def _payload(self) -> str:
        """Return the variable with the payload's value, which is assigned once."""
        if not self._has_document:
            self._has_document = True
            self._insert(f"payload = {self._named('document', Subject.document)}(s)")
        return "payload"

    def _insert(self, line: str) -> None:
        """Write a line at the beginning of the function."""
        self._lines.insert(1, f"    {line}")

    def _step(self, of: str, key: str | int) -> str:
        if isinstance(key, str) and of.isidentifier():
            kind, map = self._named("kind", type), self._named("map", dict)
            return f"({of}.get({key!r}) if {kind}({of}) is {map} else None)"
        if isinstance(key, str):
            return f"{self._named('get', runtime.get)}({of}, {key!r})"
        return f"{self._named('at', runtime.at)}({of}, {key - 1 if key > 0 else key})"

    def _field(self, name: str) -> str:
        read: Read = reader_of(name, of_events=self._of_events)
        return f"{self._named(f'field_{name}', read)}(s)"

    def _call(self, node: Call) -> str:
        function = node.function
        arguments = [
            self._prepared(function, place, argument) if place in function.prepare else self._text(argument)
            for place, argument in enumerate(node.arguments)
        ]
        plain = self._plain_comparison(node, arguments)
        if plain is not None:
            return plain
        if function.timed:
            arguments.insert(0, f"{self._named('now', runtime.now)}(s)")
        return f"{self._bound(function, len(node.arguments))}({', '.join(arguments)})"

    def _plain_comparison(self, node: Call, arguments: Sequence[str]) -> str | None:
        """Return a comparison with a constant that needs no call if the types are the usual ones."""
        sign = _SIGNS.get(node.function.name)
        if sign is None or not isinstance(node.arguments[1], Constant) or isinstance(node.arguments[0], Constant):
            return None
        types = _PLAIN_TYPES.get(node.arguments[1].kind)
        if types is None:
            return None
        one, constant = arguments
        if not one.isidentifier():
            variable = f"v{next(self._numbers)}"
            self._line(f"{variable} = {one}")
            self._written[node.arguments[0]] = one = variable
        kinds = self._named(f"{types}_types", TYPES[Kind[types.upper()]])
        call = f"{self._bound(node.function, 2)}({one}, {constant})"
        return f"({one} {sign} {constant} if {self._named('kind', type)}({one}) in {kinds} else {call})"

    def _prepared(self, function: Function, place: int, argument: Node) -> str:
        assert isinstance(argument, Constant)
        made = function.prepare[place](argument.value)
        if isinstance(made, str):
            return repr(made)
        return self._named(f"constant{next(self._numbers)}", made)

    def _bound(self, function: Function, count: int) -> str:
        name = self._calls.get((function, count))
        if name is None:
            same = sum(other is function for other, _ in self._calls)
            name = f"f_{function.name}{same + 1 if same else ''}"
            self._calls[function, count] = self._named(name, bind(function, count, self._tally))
        return name


def _conjuncts(node: Node) -> Iterator[Node]:
    """Return the parts of AND: only if all are true, the whole is."""
    if isinstance(node, Call) and node.function.name == "and":
        for argument in node.arguments:
            yield from _conjuncts(argument)
    else:
        yield node


def _is_about_payload(node: Node) -> bool:
    """Whether a condition can be told from the payload's value alone, and is about it."""
    return _reads_payload(node) is True


def _reads_payload(node: Node) -> bool | None:
    """Whether an expression has a part of the payload; ``None`` if it has anything else that is not constant."""
    match node:
        case Constant():
            return False
        case Step(of=Name(name="payload")):
            return True
        case Name():
            return None
        case Call() if node.function.timed:
            return None
    found = [_reads_payload(child) for child in children(node)]
    return None if None in found else any(found)


def _shared(roots: Iterable[Node]) -> Iterator[Node]:
    """Return what occurs more than once and costs more than a variable."""
    counts: Counter[Node] = Counter()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Constant):
            continue
        counts[node] += 1
        if counts[node] == 1:  # parts of what is shared are computed with it
            waiting += children(node)
    return (node for node, count in counts.items() if count > 1)
