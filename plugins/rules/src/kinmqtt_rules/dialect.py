"""The dialect for sqlglot: few words of SQL, no functions of its own, and tokens that mean one thing each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from sqlglot import exp, tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from kinmqtt_rules.errors import RuleError

MAX_SQL: Final = 16_384
"""The longest SQL of a rule, in characters."""

NAME: Final = "n_"
"""What names in expressions begin with."""

CASTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("int", "integer", "bigint"), "int"),
    **dict.fromkeys(("float", "double", "real"), "float"),
    **dict.fromkeys(("text", "string", "varchar"), "str"),
    **dict.fromkeys(("bool", "boolean"), "bool"),
}
"""The types of CAST, each with the function that converts to it."""

_QUOTES: Final = "'\"`"

_WORDS: Final[Mapping[str, TokenType]] = {
    "SELECT": TokenType.SELECT,
    "FROM": TokenType.FROM,
    "WHERE": TokenType.WHERE,
    "AS": TokenType.ALIAS,
    "AND": TokenType.AND,
    "OR": TokenType.OR,
    "NOT": TokenType.NOT,
    "CASE": TokenType.CASE,
    "WHEN": TokenType.WHEN,
    "THEN": TokenType.THEN,
    "ELSE": TokenType.ELSE,
    "END": TokenType.END,
    "BETWEEN": TokenType.BETWEEN,
    "IN": TokenType.IN,
    "LIKE": TokenType.LIKE,
    "IS": TokenType.IS,
    "NULL": TokenType.NULL,
    "TRUE": TokenType.TRUE,
    "FALSE": TokenType.FALSE,
}
"""The words of SQL. All others are names, also those that sqlglot gives a meaning to."""

_OPERATORS: Final[Mapping[str, TokenType]] = {
    "=~": TokenType.RLIKE,
    "<>": TokenType.NEQ,
    "!=": TokenType.NEQ,
    "<=": TokenType.LTE,
    ">=": TokenType.GTE,
}

_SIGNS: Final = frozenset(
    (
        TokenType.L_PAREN,
        TokenType.R_PAREN,
        TokenType.L_BRACKET,
        TokenType.R_BRACKET,
        TokenType.COMMA,
        TokenType.DOT,
        TokenType.PLUS,
        TokenType.DASH,
        TokenType.STAR,
        TokenType.SLASH,
        TokenType.EQ,
        TokenType.LT,
        TokenType.GT,
    )
)

_VALUES: Final = frozenset((TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER))
_ALLOWED: Final = _SIGNS | _VALUES | frozenset(_WORDS.values()) | frozenset(_OPERATORS.values())

_OPERAND_ENDS: Final = _VALUES | {
    TokenType.R_PAREN,
    TokenType.R_BRACKET,
    TokenType.END,
    TokenType.NULL,
    TokenType.TRUE,
    TokenType.FALSE,
}
"""What an operand ends with: the word behind it is an operator."""

_CLAUSES: Final = frozenset(("FOREACH", "DO", "INCASE"))
"""Words in front of an expression that are names to sqlglot."""

_COMPARISONS: Final = frozenset(
    (TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE)
)
_PART_ENDS: Final = frozenset(
    (
        TokenType.AND,
        TokenType.OR,
        TokenType.NOT,
        TokenType.CASE,
        TokenType.WHEN,
        TokenType.THEN,
        TokenType.ELSE,
        TokenType.END,
        TokenType.COMMA,
    )
)
"""What is weaker than a comparison."""

_INFIX: Final[Mapping[str, TokenType]] = {"div": TokenType.DIV, "mod": TokenType.MOD}


class RulesDialect(Dialect):
    """SQL of rules: ``"`` and ``` ` ``` quote names, ``'`` quotes texts."""

    class Tokenizer(tokens.Tokenizer):
        """Knows the words above only."""

        QUOTES: ClassVar[list[str | tuple[str, str]]] = ["'"]
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]
        STRING_ESCAPES: ClassVar[list[str]] = ["'"]
        KEYWORDS: ClassVar[dict[str, TokenType]] = {**_WORDS, **_OPERATORS}
        COMMANDS: ClassVar[set[TokenType]] = set()


_DIALECT: Final = RulesDialect()


def tokenize(sql: str) -> list[Token]:
    """Return the tokens; raises :class:`RuleError` for signs and words that rules do not have."""
    if len(sql) > MAX_SQL:
        raise RuleError(sql, MAX_SQL, f"the SQL of a rule has at most {MAX_SQL} characters")
    try:
        found = _DIALECT.tokenize(sql)
    except TokenError:
        offset = _unfinished(sql)
        raise RuleError(sql, offset, f"nothing ends what begins with {sql[offset : offset + 2].strip()}") from None
    if found and found[-1].token_type is TokenType.SEMICOLON:
        found.pop()
    before: Token | None = None
    follows_operand = False
    for place, token in enumerate(found):
        after = found[place + 1] if place + 1 < len(found) else None
        _classify(token, before, after, follows_operand=follows_operand)
        if token.token_type not in _ALLOWED and token.token_type not in _INFIX.values():
            raise RuleError(sql, token.start, f"{token.text!r} has no meaning in rules")
        if token.token_type is TokenType.VAR and not _is_name(token.text):
            raise RuleError(sql, token.start, f'{token.text!r} is no name: write "{token.text}"')
        follows_operand = token.token_type in _OPERAND_ENDS and not _is_clause(token, before)
        before = token
    return found


def _is_clause(token: Token, before: Token | None) -> bool:
    """Tell whether an expression begins behind a name."""
    is_name = before is not None and before.token_type in (TokenType.DOT, TokenType.ALIAS)
    return token.token_type is TokenType.VAR and token.text.upper() in _CLAUSES and not is_name


def _classify(token: Token, before: Token | None, after: Token | None, *, follows_operand: bool) -> None:
    """Tell names from words: behind a dot all are names, ``div`` and ``mod`` are operators behind operands."""
    kind, word = token.token_type, token.text.lower()
    if before is not None and before.token_type is TokenType.DOT and kind in _WORDS.values():
        token.token_type = TokenType.VAR
    elif kind is TokenType.VAR and word in _INFIX and follows_operand:
        token.token_type = _INFIX[word]
    elif kind is TokenType.IN and not follows_operand and after is not None and after.token_type is TokenType.L_PAREN:
        is_negated = before is not None and before.token_type is TokenType.NOT
        if not is_negated:
            token.token_type = TokenType.VAR


def _is_name(text: str) -> bool:
    return text.isidentifier() and text.isascii()


def _unfinished(sql: str) -> int:
    """Return where a text, name or comment begins that does not end."""
    place = 0
    while place < len(sql):
        if sql[place] in _QUOTES:
            end = sql.find(sql[place], place + 1)
        elif sql.startswith("/*", place):
            end = sql.find("*/", place + 2)
        elif sql.startswith("--", place):
            end = sql.find("\n", place)
            if end < 0:
                break
        else:
            end = place
        if end < 0:
            return place
        place = end + 1
    return max(0, len(sql) - 1)


def parse_expression(sql: str, found: Sequence[Token]) -> exp.Expr:
    """Return the expression that the tokens of a part of ``sql`` make; raises :class:`RuleError`.

    Names in it begin with :data:`NAME`: so none is a word to sqlglot, which has hundreds that it reads in a way of
    its own.
    """
    first = found[0]
    _check_is(sql, found)
    select = _token(first, TokenType.SELECT, "SELECT")
    try:
        [statement] = _DIALECT.parser(error_level=ErrorLevel.IMMEDIATE).parse([select, *_opaque(sql, found)], sql)
    except ParseError as error:
        raise RuleError(sql, *_parse_problem(error, found)) from None
    except RuleError:
        raise
    except RecursionError:
        raise RuleError(sql, first.start, "the expression is nested too deep") from None
    except Exception:  # whatever sqlglot makes of texts that are no SQL
        raise RuleError(sql, first.start, "this is no expression") from None
    if not isinstance(statement, exp.Select) or len(statement.expressions) != 1:
        raise RuleError(sql, first.start, "this is no expression")
    if any(value for name, value in statement.args.items() if name != "expressions"):
        raise RuleError(sql, first.start, "this is no expression")
    expression: exp.Expr = statement.expressions[0]
    return expression


def _check_is(sql: str, found: Sequence[Token]) -> None:
    """Refuse IS behind a comparison: databases do not agree on which of both binds more."""
    compares = [False]
    for token in found:
        kind = token.token_type
        if kind in (TokenType.L_PAREN, TokenType.L_BRACKET):
            compares.append(False)
        elif kind in (TokenType.R_PAREN, TokenType.R_BRACKET):
            compares = compares[:-1] or [False]
        elif kind is TokenType.IS and compares[-1]:
            raise RuleError(sql, token.start, "IS behind a comparison: write parentheses around the one or the other")
        elif kind in _COMPARISONS or kind in _PART_ENDS:
            compares[-1] = kind in _COMPARISONS


def _token(at: Token, kind: TokenType, text: str) -> Token:
    return Token(kind, text, line=at.line, col=at.col, start=at.start, end=at.end)


def _opaque(sql: str, found: Sequence[Token]) -> list[Token]:
    """Return the tokens for sqlglot: each name with a prefix, and CAST as a call with the type in a text."""
    made = []
    casts: list[int] = []
    """The depths of parentheses of CAST."""
    depth = 0
    is_type = False
    for token, after in zip(found, [*found[1:], None], strict=True):
        kind, text = token.token_type, token.text
        depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        if kind is TokenType.R_PAREN and casts and casts[-1] > depth:
            raise RuleError(sql, token.start, "CAST needs a type: CAST(… AS int)")
        if is_type:
            if kind is not TokenType.VAR or after is None or after.token_type is not TokenType.R_PAREN:
                raise RuleError(sql, token.start, f"CAST to {token.text} is unknown; use {', '.join(CASTS)}")
            kind = TokenType.STRING
            is_type = False
        elif kind is TokenType.ALIAS and casts and casts[-1] == depth:
            kind, text, is_type = TokenType.COMMA, ",", True
            casts.pop()
        elif kind in (TokenType.VAR, TokenType.IDENTIFIER):
            text = NAME + text
            if kind is TokenType.VAR and token.text.upper() == "CAST" and after is not None:
                casts += [depth + 1] * (after.token_type is TokenType.L_PAREN)
        made.append(_token(token, kind, text))
    return made


def _parse_problem(error: ParseError, found: Sequence[Token]) -> tuple[int, str]:
    """Return place and text of sqlglot's complaint; its line and column are those of a token's end."""
    about = error.errors[0] if error.errors else {}
    place = (about.get("line"), about.get("col"))
    token = next((each for each in found if (each.line, each.col) == place), found[-1])
    if token is found[-1] and "Required keyword" in str(about.get("description")):
        return token.end + 1, f"something is missing behind {token.text!r}"
    if "Expecting )" in str(about.get("description")):
        return token.start, f"a closing parenthesis is missing at {token.text!r}"
    return token.start, f"{token.text!r} is not expected here"
