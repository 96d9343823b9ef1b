"""The documentation as a site: `python3 dev.py docs` writes it to build/docs.

The pages are read on GitHub too, so they are plain Markdown with links between files. Here those links are made to
fit the site: a page outside of docs/ is the page in docs/repository/ that includes it, any other file is a download.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent

project = "kinmqtt"
author = "the authors of kinmqtt"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["examples"]
html_theme = "furo"
html_title = "kinmqtt"

# The anchors that GitHub gives to headings, down to those of hooks.
myst_heading_anchors = 4
# Fenced text without a language is what a terminal shows.
highlight_language = "text"
# Pages of hooks go from the second level to a hook's third, and a page that is included may skip one.
# A shell's quotes that go over several lines are more than the lexer of consoles knows.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": True}
nitpicky = True
# Types of others, which this site does not describe, private ones, and type variables.
nitpick_ignore_regex = [("py:.*", r"(?!kinmqtt).*"), ("py:.*", r".*\._.*"), ("py:.*", r".*\.[TF]")]

INCLUDED = re.compile(r"```\{include\} (\S+)\n```")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^(```|~~~)[^\n]*\n.*?^\1", re.MULTILINE | re.DOTALL)


def repository_pages() -> dict[Path, Path]:
    """Return the files of the repository that pages in docs/repository/ include, each with its page."""
    pages = {}
    for page in sorted((DOCS / "repository").glob("*.md")):
        if match := INCLUDED.search(page.read_text(encoding="utf-8")):
            pages[(page.parent / match[1]).resolve()] = page
    return pages


PAGES = repository_pages()


def site_source(page: Path) -> str:
    """Return a page's text as the site shows it: with what it includes, and with links that lead somewhere."""
    text = page.read_text(encoding="utf-8")
    origin = page
    if match := INCLUDED.search(text):
        origin = (page.parent / match[1]).resolve()
        text = origin.read_text(encoding="utf-8")
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [linked(text[end : fence.start()], origin, page), fence[0]]
        end = fence.end()
    return "".join([*parts, linked(text[end:], origin, page)])


def linked(text: str, origin: Path, page: Path) -> str:
    """Return prose whose links, relative to the file that it comes from, are relative to its page."""

    def target(link: re.Match[str]) -> str:
        file = (origin.parent / link[1]).resolve()
        if file.is_dir():
            file = file / "README.md" if (file / "README.md").exists() else file / "index.md"
        return os.path.relpath(PAGES.get(file, file), page.parent) + (link[2] or "")

    return LINK.sub(target, text)


def read_source(app: Any, docname: str, source: list[str]) -> None:
    """Replace what Sphinx has read of a page."""
    source[0] = site_source(DOCS / f"{docname}.md")


def setup(app: Any) -> None:
    """Register what this file adds to Sphinx."""
    app.connect("source-read", read_source)
