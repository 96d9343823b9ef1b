"""The documentation makes a site, without a warning, that has every page and leads nowhere in vain."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
INCLUDED = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `dev.py docs` makes it."""
    folder = tmp_path_factory.mktemp("site")
    command = runpy.run_path(str(ROOT / "dev.py"))["SITE"]
    caches = ["-d", str(folder / "caches")]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(folder / "html"), *caches], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def test_every_page_is_on_the_site(site: Path) -> None:
    """Those in docs/, and the files of the repository that pages in docs/repository/ include."""
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]

    assert len(pages) > 35
    assert [page for page in pages if not (site / page).is_file()] == []


def test_the_site_includes_the_pages_of_the_repository() -> None:
    """Each at the root of the repository, and the README of each distribution."""
    found = (*ROOT.glob("[!.]*/README.md"), *ROOT.glob("plugins/*/README.md"))
    readmes = [path.relative_to(ROOT).as_posix() for path in found]
    texts = [path.read_text(encoding="utf-8") for path in (DOCS / "repository").glob("*.md")]

    assert sorted(re.findall(r"\{include\} \.\./\.\./(\S+)", "".join(texts))) == sorted([*INCLUDED, *readmes])


def test_links_lead_somewhere(site: Path) -> None:
    """Each link to a page of the site, and to a place on it, those from included pages too."""
    ids: dict[Path, set[str]] = {}
    broken = []
    for page in site.rglob("*.html"):
        for link in re.findall(r'href="([^":]*)"', page.read_text(encoding="utf-8")):
            path, _, anchor = unquote(link).partition("#")
            file = (page.parent / path.partition("?")[0]).resolve() if path else page
            if file not in ids:
                text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
                ids[file] = set(re.findall(r'id="([^"]+)"', text))
            if not file.exists() or (anchor and file.suffix == ".html" and anchor not in ids[file]):
                broken.append(f"{page.relative_to(site)}: {link}")

    assert broken == []


@pytest.mark.parametrize(
    ("page", "name", "says"),
    [
        ("authentication", "kinmqtt_spi.services.authentication.Identity.expires_at", "Seconds since the epoch"),
        ("api", "kinmqtt_spi.values.Message", "An application message"),
        ("message", "kinmqtt_spi.topics.covers", "matches every topic"),
    ],
)
def test_the_spi_is_described_from_its_docstrings(site: Path, page: str, name: str, says: str) -> None:
    """Classes, their fields and functions, each with what its docstring says."""
    text = (site / f"{page}.html").read_text(encoding="utf-8")

    assert says in text[text.index(f'id="{name}"') :][:6000]
