"""What is promised about the docs: each hook is explained, documented and tested; links lead somewhere."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from root_harness.hook_headings import ROOT, Hook, declared_hooks, hooks_in

HOOKS = declared_hooks()
DOCSTRING_LINES = ("Called:", "Combines:", "If it raises:", "Threading:")
each_hook = pytest.mark.parametrize("hook", HOOKS, ids=[f"{hook.module}.{hook.name}" for hook in HOOKS])

NAMED_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
PAGES = [ROOT / name for name in NAMED_PAGES] + sorted((ROOT / "docs").rglob("*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


def test_there_are_hooks_to_look_at() -> None:
    """An empty list would let every test below pass."""
    assert HOOKS


def test_hook_names_are_unique() -> None:
    """pluggy knows a hook by its name alone, so two modules can't share one."""
    names = [hook.name for hook in HOOKS]

    assert sorted(names) == sorted(set(names))


@each_hook
def test_hook_docstring_says_when_how_and_where(hook: Hook) -> None:
    """Each docstring has one line that begins with each of the four words."""
    said = [line for line in hook.docstring.splitlines() if line.startswith(DOCSTRING_LINES)]

    assert [line.split(":")[0] + ":" for line in said] == list(DOCSTRING_LINES)
    assert all(line.split(":", 1)[1].strip() for line in said)


@each_hook
def test_hook_has_a_heading_with_its_exact_signature(hook: Hook) -> None:
    """The docs page of the hook's module has the heading that `hook_headings.py` prints."""
    assert hook.page.exists(), f"{hook.page.relative_to(ROOT)} is missing"

    headings = [line for line in prose(hook.page.read_text(encoding="utf-8")) if line.startswith("### ")]

    assert hook.heading in headings


@each_hook
def test_hook_is_mentioned_in_a_test(hook: Hook, words_in_tests: frozenset[str]) -> None:
    """Some test file names the hook."""
    assert hook.name in words_in_tests


@pytest.fixture(scope="module")
def words_in_tests() -> frozenset[str]:
    """Every word in the code of the tests, this file left out."""
    folders = [ROOT / "tests", *ROOT.glob("*/tests"), *ROOT.glob("plugins/*/tests")]
    files = {path for folder in folders for path in folder.rglob("*.py") if "node_modules" not in path.parts}
    files -= {Path(__file__).resolve()}
    return frozenset(word for path in files for word in code_words(path.read_text(encoding="utf-8")))


@each_page
def test_relative_links_resolve(page: Path) -> None:
    """Each link to a file of this repository, and to a heading in it, leads somewhere."""
    assert page.exists(), f"{page.relative_to(ROOT)} is missing"

    assert list(broken_links(page, ROOT)) == []


# The helpers, and that they bite


def code_words(source: str) -> Iterator[str]:
    """Yields identifiers and words of short strings; prose uses hooks' names as plain English."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string
        elif token.type == tokenize.STRING and not token.string.endswith(('"""', "'''")):
            yield from re.findall(r"\w+", token.string)


def prose(text: str) -> Iterator[str]:
    """Yields a page's lines outside of fenced code."""
    fence = ""
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark and not fence:
            fence = mark.group(1)
        elif mark and mark.group(1).startswith(fence):
            fence = ""
        elif not fence:
            yield line


def broken_links(page: Path, root: Path) -> Iterator[str]:
    """Yields the link targets of a page that lead nowhere."""
    for line in prose(page.read_text(encoding="utf-8")):
        plain = re.sub(r"`[^`]*`", "", line)
        targets = re.findall(r"\]\(<?([^)\s>]+)", plain) + re.findall(r"^\s*\[[^\]]+\]:\s*<?([^\s>]+)", plain)
        for target in targets:
            if not re.match(r"[a-z][a-z0-9+.-]*:", target) and not leads_somewhere(page, target, root):
                yield target


def leads_somewhere(page: Path, target: str, root: Path) -> bool:
    """Tells whether a relative target is a file and, where it names a heading, whether that page has it."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists() or not file.is_relative_to(root):
        return False
    return not anchor or file.suffix != ".md" or anchor in anchors(file.read_text(encoding="utf-8"))


def anchors(text: str) -> set[str]:
    """Returns the anchors that GitHub gives to a page's headings."""
    found: set[str] = set()
    for line in prose(text):
        if heading := re.match(r"#{1,6}\s+(.*)", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            count = sum(1 for other in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", other))
            found.add(f"{slug}-{count}" if slug in found else slug)
    return found


def test_heading_is_built_from_the_signature() -> None:
    """Quotes, `self` and line breaks go; defaults and keyword-only parameters stay."""
    source = '''
class Specs:
    @markers.hookspec(firstresult=True)
    def decide(
        self, client: "Client", *, levels: tuple[int, ...] = (), limit_s=1.0
    ) -> "Decision":
        """Decides."""

    def helper(self) -> None: ...

@hookspec
def plain(first, second=2): ...
'''

    assert [hook.heading for hook in hooks_in(source, "module")] == [
        "### `plain(first, second=2)`",
        "### `decide(client: Client, *, levels: tuple[int, ...] = (), limit_s=1.0) -> Decision`",
    ]


def test_comments_and_docstrings_are_not_tests_of_a_hook() -> None:
    """Only code and short strings count as mentioning a hook."""
    source = '"""It is retained."""\n# subscribed\nhook.acquire("published")\n'

    assert set(code_words(source)) == {"hook", "acquire", "published"}


def test_broken_links_are_found(tmp_path: Path) -> None:
    """Missing files, headings and ways out of the repository are reported; code and the web aren't."""
    (tmp_path / "other.md").write_text("# One `heading(x)`\n## Twice\n## Twice\n")
    (tmp_path / "page.md").write_text(
        "# Here\n[a](other.md) [b](#here) [c](other.md#one-headingx) [d](other.md#twice-1)\n"
        "[e](https://example.org)\n"
        "`[f](code.md)`\n```\n[g](code.md)\n```\n"
        "[h](missing.md) [i](other.md#nowhere) [j](#nowhere) [k](../)\n[l]: gone.md\n"
    )

    assert list(broken_links(tmp_path / "page.md", tmp_path)) == [
        "missing.md",
        "other.md#nowhere",
        "#nowhere",
        "../",
        "gone.md",
    ]
