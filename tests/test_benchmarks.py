"""The benchmarks run, and say what they promise. What they measure is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

from spi_harness.processes import TIME_LIMIT_S

ROOT = Path(__file__).resolve().parents[1]
SVG = "{http://www.w3.org/2000/svg}"
CHARTS = {
    "match": "Match of a topic",
    "retained": "Look-up of retained messages",
    "fanout": "Fan-out of one message",
    "fanout-delivery": "Fan-out, for each delivery",
    "memory": "Memory",
}
CLUSTER_PARTS = ["efficiency", "fanout", "latency", "stall", "takeover", "join", "redis"]
CLUSTER_LIMIT_S = 300.0
"""Its clusters are started one after the other, 21 brokers in all."""


def test_growth_prints_every_table_and_draws_every_plot(tmp_path: Path) -> None:
    """A quick run has each table with a figure in each row, a plot of each, and the figures as JSON."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "growth.py"), "--quick"]

    done = subprocess.run(
        [*command, "--json", str(figures), "--plots", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    charts = {chart["name"]: chart for chart in json.loads(figures.read_text(encoding="utf-8"))["charts"]}
    assert list(charts) == list(CHARTS)
    for name, title in CHARTS.items():
        columns = charts[name]["columns"]
        assert all(figure > 0 for column in columns.values() for figure in column.values())
        _, found, table = done.stdout.partition(f"### {title}\n")
        assert found
        rows = [line for line in table.partition("###")[0].splitlines() if line.startswith("|")]
        assert [row.count(" | ") for row in rows] == [len(columns)] * (2 + len(charts[name]["x_values"]))
        plot = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
        assert plot.tag == f"{SVG}svg"
        texts = [text.text for text in plot.iter(f"{SVG}text")]
        assert {title, charts[name]["x_title"], charts[name]["y_title"]} <= set(texts)
        assert {column.replace("`", "") for column in columns} <= set(texts)


def test_a_message_in_one_process_is_measured() -> None:
    """A line for each kind of session."""
    command = [sys.executable, str(ROOT / "benchmarks" / "in_process.py"), "--rounds", "3"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "QoS 1, nothing stored",
        "QoS 1 to a persistent session",
        "QoS 1 to an outbox, which is consumed",
    ]


def test_the_cost_of_rules_is_measured() -> None:
    """A line for each broker, and a ratio for each aim."""
    command = [sys.executable, str(ROOT / "benchmarks" / "rules.py"), "--rounds", "2"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "none",
        "elsewhere",
        "one",
        "ten",
        "topics without rules, 100 rules elsewhere ÷ no plugin",
        "one rule that does not match ÷ no plugin",
        "ten rules that do not match ÷ one",
    ]


def test_an_outbox_is_measured_beside_a_subscriber() -> None:
    """A row for each load."""
    quick = ["--stored", "memory", "--rounds", "1", "--seconds", "0.1", "--rate", "500"]
    command = [sys.executable, str(ROOT / "benchmarks" / "outbox.py"), *quick]

    done = subprocess.run(command, capture_output=True, text=True, timeout=CLUSTER_LIMIT_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split(" | ")[:2] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[1:] == [["| memory", "as fast as it goes"], ["| memory", "500 messages/s"]]


def test_the_time_until_a_dead_node_is_noticed_is_measured(tmp_path: Path) -> None:
    """A quick run has a row for each size, its goal is met, and each figure is in the JSON file."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "membership.py"), "--quick", "--json", str(figures)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(" ")[1] for line in done.stdout.splitlines()[2:]] == ["3", "5"]
    assert "5: met" in done.stdout
    stored = json.loads(figures.read_text(encoding="utf-8"))
    assert [len(each["down_s"]) for each in stored] == [3, 3]


def test_every_part_of_a_cluster_is_measured(tmp_path: Path) -> None:
    """A quick run has a table of each part, no message is lost, and each figure is in the JSON file."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "cluster.py"), "--quick", "--json", str(figures)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=CLUSTER_LIMIT_S, check=False)

    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text(encoding="utf-8"))
    parts = done.stdout.split("\n## ")[1:]
    assert [part.partition("\n")[0] for part in parts] == list(found) == CLUSTER_PARTS
    for part in parts:
        heads, _, *rows = [line for line in part.splitlines() if line.startswith("|")]
        assert rows
        assert {row.count("|") for row in rows} == {heads.count("|")}


def test_an_unknown_part_of_a_cluster_is_named() -> None:
    """With those that there are."""
    command = [sys.executable, str(ROOT / "benchmarks" / "cluster.py"), "--only", "fanout,speed"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)

    assert done.returncode == 2
    assert "there is no part speed; there are efficiency, fanout" in done.stderr


def test_micro_benchmarks_answer_what_they_assert() -> None:
    """Each runs once, untimed."""
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-disable", "benchmarks/test_micro.py"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_benchmarks_run_only_when_asked_for() -> None:
    """No folder that pytest looks through by itself is theirs."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]

    assert not [path for path in settings["testpaths"] if path.startswith("benchmarks")]
