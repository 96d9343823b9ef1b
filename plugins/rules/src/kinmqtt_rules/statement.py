"""A rule's SQL, cut into its parts: SELECT or FOREACH, DO, INCASE, FROM and WHERE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from attrs import frozen
from sqlglot.tokenizer_core import Token, TokenType

from kinmqtt_rules.dialect import tokenize
from kinmqtt_rules.errors import RuleError
from kinmqtt_spi.settings import did_you_mean

MAX_ITEMS: Final = 200
"""The most expressions in SELECT or DO."""

_ORDERS: Final = (("SELECT", "FROM", "WHERE"), ("FOREACH", "DO", "INCASE", "FROM", "WHERE"))
_NEEDED: Final = frozenset(("SELECT", "FOREACH", "FROM"))
_BRACKETS: Final = {TokenType.L_PAREN: TokenType.R_PAREN, TokenType.L_BRACKET: TokenType.R_BRACKET}
_NAMES: Final = (TokenType.VAR, TokenType.IDENTIFIER)
_WORDS: Final = frozenset(word for order in _ORDERS for word in order)


@frozen(slots=True)
class Part:
    """A part of the SQL; ``offset`` is the place of its word."""

    word: str
    offset: int
    tokens: Sequence[Token]


@frozen(slots=True)
class Item:
    """An expression and its name; a star has neither."""

    tokens: Sequence[Token]
    alias: tuple[str, ...]
    offset: int
    is_star: bool = False


@frozen(slots=True)
class Statement:
    """A rule's SQL."""

    sql: str
    items: tuple[Item, ...]
    """What is selected, or what DO makes of each element."""
    sources: tuple[tuple[str, int], ...]
    """Topic filters and topics of events, each with its offset."""
    where: Sequence[Token]
    foreach: Item | None = None
    incase: Sequence[Token] = ()


def cut(sql: str) -> Statement:
    """Return the parts of a rule's SQL; raises :class:`RuleError`."""
    found = tokenize(sql)
    if not found:
        raise RuleError(sql, 0, 'the SQL is empty: write SELECT … FROM "topic"')
    parts = {part.word: part for part in _parts(sql, found)}
    where = parts["WHERE"].tokens if "WHERE" in parts else ()
    sources = tuple(_sources(sql, parts["FROM"]))
    if "SELECT" in parts:
        return Statement(sql, tuple(_items(sql, parts["SELECT"])), sources, where)
    [*_, foreach] = elements = list(_items(sql, parts["FOREACH"]))
    if len(elements) != 1 or foreach.is_star or len(foreach.alias) > 1:
        raise RuleError(sql, parts["FOREACH"].offset, "FOREACH has one expression, with a plain name: … AS item")
    items = tuple(_items(sql, parts["DO"])) if "DO" in parts else ()
    incase = parts["INCASE"].tokens if "INCASE" in parts else ()
    return Statement(sql, items, sources, where, foreach, incase)


def _parts(sql: str, found: Sequence[Token]) -> Iterator[Part]:
    _check_brackets(sql, found)
    depth = 0
    starts: list[tuple[str, int]] = []
    for place, token in enumerate(found):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        word = token.text.upper()
        is_member = place > 0 and found[place - 1].token_type is TokenType.DOT
        is_alias = place > 0 and found[place - 1].token_type is TokenType.ALIAS
        if depth == 0 and word in _WORDS and not is_member and not is_alias and _is_bare(token):
            starts.append((word, place))
    order = next((order for order in _ORDERS if starts and starts[0] == (order[0], 0)), None)
    if order is None:
        hint = did_you_mean(found[0].text.upper(), ("SELECT", "FOREACH"))
        raise RuleError(sql, found[0].start, f"a rule begins with SELECT or FOREACH, not {found[0].text!r}{hint}")
    ends = [place for _, place in starts[1:]] + [len(found)]
    before = -1
    for (word, place), end in zip(starts, ends, strict=True):
        if word not in order or order.index(word) <= before:
            raise RuleError(sql, found[place].start, f"{word} is not expected here; the order is {', '.join(order)}")
        before = order.index(word)
        if end == place + 1:
            raise RuleError(sql, found[place].end + 1, f"something is missing behind {word}")
        yield Part(word, found[place].start, found[place + 1 : end])
    if "FROM" not in (word for word, _ in starts):
        raise RuleError(sql, *_missing_from(sql, found))


def _check_brackets(sql: str, found: Sequence[Token]) -> None:
    opened: list[Token] = []
    for token in found:
        if token.token_type in _BRACKETS:
            opened.append(token)
        elif token.token_type in _BRACKETS.values():
            if not opened or _BRACKETS[opened.pop().token_type] is not token.token_type:
                raise RuleError(sql, token.start, f"nothing opens what {token.text!r} closes")
    if opened:
        raise RuleError(sql, opened[-1].start, f"nothing closes this {opened[-1].text!r}")


def _is_bare(token: Token) -> bool:
    return token.token_type not in (TokenType.IDENTIFIER, TokenType.STRING)


def _missing_from(sql: str, found: Sequence[Token]) -> tuple[int, str]:
    """Return the place and the text for a missing FROM: a misspelled one in front of a quoted name is found."""
    for token, after in pairwise(found):
        if after.token_type in (TokenType.IDENTIFIER, TokenType.STRING) and token.token_type is TokenType.VAR:
            return token.start, f"no FROM; did you mean FROM, not {token.text!r}?"
    return len(sql), 'no FROM; write FROM "topic"'


def _commas(found: Sequence[Token]) -> Iterator[Sequence[Token]]:
    depth = start = 0
    for place, token in enumerate(found):
        depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
        depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
        if depth == 0 and token.token_type is TokenType.COMMA:
            yield found[start:place]
            start = place + 1
    yield found[start:]


def _items(sql: str, part: Part) -> Iterator[Item]:
    offset = part.offset
    for count, found in enumerate(_commas(part.tokens)):
        if not found:
            raise RuleError(sql, offset, f"an expression is missing in {part.word}")
        if count == MAX_ITEMS:
            raise RuleError(sql, found[0].start, f"{part.word} has more than {MAX_ITEMS} expressions")
        offset = found[0].start
        if len(found) == 1 and found[0].token_type is TokenType.STAR:
            yield Item(found, (), offset, is_star=True)
            continue
        expression, alias = _alias(sql, found)
        yield Item(expression, alias, offset)
        offset = found[-1].end + 1


def _alias(sql: str, found: Sequence[Token]) -> tuple[Sequence[Token], tuple[str, ...]]:
    """Return the expression's tokens and the keys of the alias behind AS; there may be several, as `payload.x`."""
    depth = 0
    place = None
    for index, token in enumerate(found):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if depth == 0 and token.token_type is TokenType.ALIAS:
            place = index
            break
    if place is None:
        return found, ()
    names = found[place + 1 :]
    if place == 0 or not names:
        raise RuleError(sql, found[place].start, "AS stands between an expression and its name")
    keys = []
    for index, token in enumerate(names):
        is_name = index % 2 == 0
        if token.token_type not in (_NAMES if is_name else (TokenType.DOT,)) or (is_name and not token.text):
            hint = f'; write "{token.text}"' if is_name and token.text.isidentifier() else ""
            raise RuleError(sql, token.start, f"{token.text!r} can't be in a name{hint}")
        if is_name:
            keys.append(token.text)
    if len(names) % 2 == 0:
        raise RuleError(sql, names[-1].start, "a name does not end with a dot")
    return found[:place], tuple(keys)


def _sources(sql: str, part: Part) -> Iterator[tuple[str, int]]:
    for found in _commas(part.tokens):
        if not found:
            raise RuleError(sql, part.offset, "a topic is missing in FROM")
        token = found[0]
        if len(found) != 1 or token.token_type not in (TokenType.IDENTIFIER, TokenType.STRING):
            wrong = token if token.token_type not in (TokenType.IDENTIFIER, TokenType.STRING) else found[1]
            raise RuleError(
                sql, wrong.start, f'{wrong.text!r} is not expected in FROM: write FROM "topic", "other/#"'
            )
        yield token.text, token.start
