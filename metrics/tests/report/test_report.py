"""The command: one page that needs nothing else, says what is missing, and survives what it reads."""

from __future__ import annotations

import builtins
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.command import main
from kinmqtt_metrics.intervals import Intervals
from kinmqtt_metrics.pipeline.commits import Commit, Commits
from kinmqtt_metrics.report import ReportError, make
from metrics_harness.table_data import START, World, write

MADE = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Page(HTMLParser):
    """A page as a browser takes it apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Remember it."""
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Remember it."""
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        """It must be the one that was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """What is read."""
        self.text += data


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of half a day."""
    folder = tmp_path_factory.mktemp("tables")
    World(windows=120).write(folder)
    return folder


@pytest.fixture(scope="module")
def page(world: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of them."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    make(world, out, made_at=MADE, title="Plant <south>")
    return out.read_text("utf-8")


def test_the_page_needs_nothing_else(page: str) -> None:
    """No script, no font, no picture and no style is fetched, and the page forbids it to itself."""
    found = Page(page)

    assert found.open == []
    for tag, attributes in found.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "image")
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'" in page
    assert "Plant <south>" in found.text


def test_every_plot_is_there_with_what_it_shows(page: str) -> None:
    """Each part has a sentence, a bad sign and a picture; ids are unique, or plots would take each other's clips."""
    found = Page(page)

    assert sum(tag == "svg" for tag, _ in found.tags) == 12
    assert page.count('class="bad"') == 10
    assert 'class="missing"' not in page
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(|xlink:href=")#([^")]+)', page))
    assert used <= set(ids)


def test_colours_follow_the_reader(page: str) -> None:
    """Every colour in a plot is a variable of the page, which has one value by day and one by night."""
    plots = "".join(re.findall(r"<figure>.*?</figure>", page, re.DOTALL))

    assert not re.search(r"#[0-9a-f]{6}\b", plots)
    for name in set(re.findall(r"var\(--([\w-]+)\)", page)):
        assert page.count(f"--{name}:") == 2


def test_foreign_strings_are_text(page: str) -> None:
    """A client may be called what it likes: nothing of it becomes a tag, and what can't be seen is shown."""
    found = Page(page)

    assert "<script>alert(1)</script>" in found.text
    assert "\x1b" not in page
    assert "\x00" not in page
    assert "alert" not in "".join(str(attributes) for _, attributes in found.tags)


def test_what_is_late_or_rejected_comes_first(page: str) -> None:
    """Who reads sums must know first what is not in them."""
    text = Page(page).text

    assert text.index("412 records came too late") < text.index("messages received")
    assert text.index("could not be read") < text.index("messages received")


def test_sums_on_top_are_those_of_the_table(world: Path, page: str) -> None:
    """To the message."""
    table = pq.read_table(t.RATES.folder(world)).to_pylist()
    received = sum(row["delta"] for row in table if row["name"] == "messages.received")

    assert f"{received:,}".replace(",", "\u202f") in page


def test_the_same_tables_give_the_same_page(world: Path, page: str, tmp_path: Path) -> None:
    """A report can be compared with another."""
    make(world, tmp_path / "again.html", made_at=MADE, title="Plant <south>")

    assert (tmp_path / "again.html").read_text("utf-8") == page


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """With one table there is a report all the same, which says of each other part why it may be empty."""
    row = {"window_start": START, "window_s": 10, "node": "a", "reason": "queue_full", "messages": 3}
    write(tmp_path / "t", t.DROPS, [row])

    make(tmp_path / "t", tmp_path / "report.html", made_at=MADE)

    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count('class="missing"') == 9
    assert "No data in the table rates for this span." in page


def test_plots_are_files_as_well(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--png`` writes each of them; the command says where the page is."""
    out = tmp_path / "report.html"

    status = main(["report", "--tables", str(world), "--out", str(out), "--png", str(tmp_path / "png")])

    assert status == 0
    assert capsys.readouterr().out == f"{out}\n"
    files = sorted(path.name for path in (tmp_path / "png").iterdir())
    assert len(files) == 12
    assert all((tmp_path / "png" / name).read_bytes().startswith(b"\x89PNG") for name in files)


def test_a_torn_or_foreign_file_is_named_and_left_out(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are told, and both page and terminal say what is missing."""
    row = {"window_start": START, "window_s": 10, "node": "a", "name": "messages.received", "delta": 5, "labels": {}}
    good = write(tmp_path, t.RATES, [row], 0)
    whole = good.read_bytes()
    (good.parent / "batch-0000000001.parquet").write_bytes(whole[: len(whole) // 2])
    pq.write_table(pa.table({"x": [1]}), good.parent / "batch-0000000002.parquet")
    wrong = pa.table({name: ["x"] for name in t.RATES.columns})
    pq.write_table(wrong, good.parent / "batch-0000000003.parquet")
    out = tmp_path / "report.html"

    status = main(["report", "--tables", str(tmp_path), "--out", str(out)])

    error = capsys.readouterr().err
    page = out.read_text("utf-8")
    assert status == 0
    for number in (1, 2, 3):
        assert f"rates/batch-000000000{number}.parquet" in error
        assert f"rates/batch-000000000{number}.parquet" in page
    assert "3 files of the tables could not be read" in page
    assert ">5<" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tables", "nowhere"], "there is no such folder"),
        (["--tables", "file"], "is a file"),
        (["--tables", "empty"], "has no tables"),
        (["--tables", "there", "--since", "yesterday"], "--since: 'yesterday' is not a time"),
        (["--tables", "there", "--since", "2030-01-01"], "nothing is left between --since and --until"),
        (["--tables", "there", "--node", "nobody"], "nothing of nobody in this span"),
        (["--tables", "there", "--out", "nowhere/report.html"], "can't be written: No such file or directory"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is wrong and where, in one line, and no page is begun."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("empty").mkdir()
    row = {"window_start": START, "window_s": 10, "node": "a", "reason": "queue_full", "messages": 3}
    write(Path("there"), t.DROPS, [row])
    before = sorted(tmp_path.iterdir())

    status = main(["report", "--out", "report.html", *arguments])

    error = capsys.readouterr().err
    assert status == 1
    assert said in error
    assert "Traceback" not in error
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("package", ["datasketches", "duckdb", "jinja2", "matplotlib"])
def test_without_the_extra_it_says_what_to_install(
    package: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that only runs the broker has none."""
    real = builtins.__import__

    def refuse(name: str, *more: Any, **named: Any) -> Any:
        if name.startswith(package):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)

    with pytest.raises(ReportError, match=rf"needs {package}.*pip install 'kinmqtt-metrics\[report\]'"):
        make(world, tmp_path / "report.html")


def rate(**odd: Any) -> dict[str, Any]:
    """A row of ``rates``."""
    row = {"window_start": START, "window_s": 10, "node": "a", "name": "messages.received", "labels": {}, "delta": 5}
    return row | odd


def histogram(**odd: Any) -> dict[str, Any]:
    """A row of ``histograms``."""
    row = {"name": "stores.commit", "unit": "seconds", "labels": {}, "bounds": [0.1, 1.0], "counts": [1, 2, 3]}
    return {"window_start": START, "window_s": 10, "node": "a", "sum": 1.0} | row | odd


@pytest.mark.parametrize(
    ("table", "odd"),
    [
        (t.RATES, rate(window_start=START.replace(year=9999))),
        (t.RATES, rate(window_start=START.replace(year=1))),
        (t.RATES, rate(window_start=None)),
        (t.RATES, rate(window_s=2**31 - 1)),
        (t.RATES, rate(window_s=-10)),
        (t.RATES, rate(delta=2**63 - 1)),
        (t.RATES, rate(delta=-1)),
        (t.HISTOGRAMS, histogram(bounds=[1.0, 0.1])),
        (t.HISTOGRAMS, histogram(bounds=[1.0, 1.0])),
        (t.HISTOGRAMS, histogram(bounds=[0.1, float("nan")])),
        (t.HISTOGRAMS, histogram(bounds=[0.1, float("inf")])),
        (t.HISTOGRAMS, histogram(bounds=None)),
        (t.HISTOGRAMS, histogram(counts=[1, 2])),
        (t.HISTOGRAMS, histogram(counts=[1, -2, 3])),
        (t.HISTOGRAMS, histogram(counts=[1, None, 3])),
        (t.HISTOGRAMS, histogram(counts=[1, 2, 2**63 - 1])),
        (t.HISTOGRAMS, histogram(sum=float("inf"))),
    ],
)
def test_a_row_that_can_not_be_is_set_aside(
    table: t.Table, odd: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every sum is what it would be without it, and a line says so, on the page and on the terminal."""
    found = {}
    for folder, more in (("without", []), ("with", [odd])):
        write(tmp_path / folder, t.RATES, [rate(), *(more if table is t.RATES else [])])
        write(tmp_path / folder, t.HISTOGRAMS, [histogram(), *(more if table is t.HISTOGRAMS else [])])
        facts = make(tmp_path / folder, tmp_path / f"{folder}.html", made_at=MADE)
        [line] = facts.histograms.values()
        found[folder] = (facts.totals, facts.rows, facts.axis.span, line.observations, line.whole, line.total)

    status = main(["report", "--tables", str(tmp_path / "with"), "--out", str(tmp_path / "with.html")])

    said = f"1 row of the tables {table.name} (1) can't be"
    assert status == 0
    assert said in capsys.readouterr().err
    assert said in Page((tmp_path / "with.html").read_text("utf-8")).text
    assert found["with"] == found["without"]


def test_what_is_not_told_ends_no_page(tmp_path: Path) -> None:
    """Rows of which every other column is empty, in every table."""
    for table in t.TABLES:
        key = {"window_start": START, "window_s": 10, "node": "a"} if "window_start" in table.columns else {}
        write(tmp_path, table, [key, key])

    make(tmp_path, tmp_path / "report.html", made_at=MADE)

    assert (tmp_path / "report.html").exists()


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    """Signs of a pattern in a path are signs, and a folder such as ``node=3`` is no column."""
    folder = tmp_path / "[a]*? 'b' node=3"
    write(folder, t.RATES, [rate()])

    facts = make(folder, tmp_path / "report.html", made_at=MADE)

    assert facts.totals == {("a", "messages.received"): 5}
    assert facts.left_out == []


RAW = [
    {"v": 1, "t": 1, "kind": "event", "node": node, "boot": "00000000c0ffee01", "seq": seq}
    for node, numbers in (("<a>", (1, 2, 5, 9, 9)), ("b", (1, 2, 3)))
    for seq in numbers
]


@pytest.mark.parametrize("written_down", [False, True])
def test_records_that_were_not_read_are_told(written_down: bool, tmp_path: Path) -> None:
    """By life, with their numbers: as the pipeline wrote it down, or by ``raw`` where tables stand alone."""
    write(tmp_path, t.RATES, [rate()])
    if written_down:
        steps = Commits(tmp_path)
        steps.folder.mkdir(parents=True)
        with steps.making("0000000000") as making:
            Commit(seen={("<a>", "00000000c0ffee01"): Intervals([(1, 2), (5, 5), (9, 9)])}).write(making)
    else:
        write(tmp_path, t.RAW, RAW[:3], 0)
        write(tmp_path, t.RAW, RAW[3:], 1)

    facts = make(tmp_path, tmp_path / "report.html", made_at=MADE)
    others = make(tmp_path, tmp_path / "b.html", made_at=MADE, nodes=["a"])

    said = "5 records of <a> 00000000c0ffee01 were not read: seq 3-4, 6-8"
    assert facts.missing == [said]
    assert said in Page((tmp_path / "report.html").read_text("utf-8")).text
    assert others.missing == []
