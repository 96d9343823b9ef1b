"""Mistakes in rules, with their places."""

from __future__ import annotations


class RuleError(ValueError):
    """A mistake in a rule's SQL: ``offset`` is its place in ``sql``, in characters."""

    def __init__(self, sql: str, offset: int, text: str) -> None:
        self.offset = max(0, min(offset, len(sql)))
        self.text = text
        before = sql[: self.offset]
        self.line = before.count("\n") + 1
        self.column = self.offset - (before.rfind("\n") + 1) + 1
        super().__init__(f"{self.line}:{self.column}: {text}")
