"""Texts of Spark SQL: literals, names, patterns and templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final


def quoted(text: str) -> str:
    """Return a literal of Spark SQL."""
    escaped = "".join(f"\\u{ord(sign):04x}" if ord(sign) < 32 or sign in "'\\" else sign for sign in text)
    return f"'{escaped}'"


def name_of(text: str) -> str:
    """Return a quoted name of Spark SQL."""
    return f"`{text.replace('`', '``')}`"


END: Final = "\\E"
ESCAPED_END: Final = "\\E\\\\E\\Q"
"""What ends a quotation in a regular expression of Java, and how it is quoted itself."""


def topic_pattern(filter: str) -> str:
    """Return the regular expression of Java for a topic filter."""
    levels = filter.split("/")
    parts = [
        "[^/]*" if level == "+" else f"\\Q{level.replace(END, ESCAPED_END)}\\E" for level in levels if level != "#"
    ]
    pattern = "/".join(parts)
    if levels[-1] == "#":
        pattern = f"{pattern}(/.*)?" if parts else ".*"
    begin = "(?!\\$)" if levels[0] in ("+", "#") else ""
    return f"(?s)^{begin}{pattern}$"


def filled(template: str, texts: Sequence[str]) -> str:
    """Return a template with its arguments; ``{all}`` is all of them, ``{rest}`` all but the first."""
    for place in range(len(texts)):
        template = template.replace(f"{{{place}}}", f"\0{place}\0")
    template = template.replace("{all}", ", ".join(f"\0{place}\0" for place in range(len(texts))))
    template = template.replace("{rest}", ", ".join(f"\0{place}\0" for place in range(1, len(texts))))
    for place, text in enumerate(texts):
        template = template.replace(f"\0{place}\0", text)
    return template
