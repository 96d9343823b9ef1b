"""Writes expressions of rules: as people do, and with all parentheses."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

_SIGNS: Final = (("OR",), ("AND",), (), ("=", "<>"), ("<", ">="), (), (), ("+", "-"), ("*", "/", "div", "mod"))
_BINARY: Final = tuple((level, sign) for level, signs in enumerate(_SIGNS, 1) for sign in signs)
"""Operators, from those that bind least."""

_ATOM: Final = 20
_LEAVES: Final = (
    "1",
    "2.5",
    "'a'",
    "payload.a",
    "payload.b[1].c",
    "payload.list[-1]",
    "topic",
    "qos",
    "true",
    "payload.map",
)

Written = tuple[int, str, str]
"""How strongly it binds, as people write it, and with all parentheses."""


def _within(operand: Written, least: int) -> str:
    return operand[1] if operand[0] >= least else f"({operand[1]})"


def _binary(parts: tuple[tuple[int, str], Written, Written]) -> Written:
    (level, sign), one, two = parts
    # Operators of one level go from left to right.
    return level, f"{_within(one, level)} {sign} {_within(two, level + 1)}", f"({one[2]} {sign} {two[2]})"


def _between(parts: tuple[Written, Written, Written]) -> Written:
    one, low, high = parts
    texts = [_within(each, 8) for each in parts]
    return 6, f"{texts[0]} BETWEEN {texts[1]} AND {texts[2]}", f"({one[2]} BETWEEN {low[2]} AND {high[2]})"


def _not(one: Written) -> Written:
    return 3, f"NOT {_within(one, 4)}", f"(NOT {one[2]})"


def _is_null(one: Written) -> Written:
    # In a comparison it needs parentheses.
    return 3, f"{_within(one, 8)} IS NOT NULL", f"({one[2]} IS NOT NULL)"


def _in(parts: tuple[Written, Written]) -> Written:
    one, two = parts
    return 6, f"{_within(one, 8)} IN ({two[1]}, 3)", f"({one[2]} IN ({two[2]}, 3))"


def _call(one: Written) -> Written:
    return _ATOM, f"coalesce({one[1]}, 1)", f"(coalesce({one[2]}, 1))"


def _case(parts: tuple[Written, Written]) -> Written:
    one, two = parts
    return (
        _ATOM,
        f"CASE WHEN {one[1]} THEN {two[1]} ELSE 0 END",
        f"(CASE WHEN ({one[2]}) THEN ({two[2]}) ELSE 0 END)",
    )


def expressions() -> st.SearchStrategy[tuple[str, str]]:
    """Return pairs of one expression's texts."""
    leaves = st.sampled_from([(_ATOM, leaf, f"({leaf})") for leaf in _LEAVES])
    written = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(_BINARY), inner, inner).map(_binary),
            st.tuples(inner, inner, inner).map(_between),
            st.tuples(inner, inner).map(_in),
            st.tuples(inner, inner).map(_case),
            inner.map(_not),
            inner.map(_is_null),
            inner.map(_call),
        ),
        max_leaves=6,
    )
    return written.map(lambda each: (each[1], each[2]))
