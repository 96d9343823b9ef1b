"""Where tables are: a folder, or a URL, which the commands that read files do not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinmqtt_metrics.command import main
from kinmqtt_metrics.table_arguments import local, tables_at


def test_a_folder_is_a_path_and_a_url_stays_one() -> None:
    """pathlib would take one of the two slashes away."""
    assert tables_at("a/b:c") == Path("a/b:c")
    assert tables_at("file:///a%20b") == Path("/a b")
    assert tables_at("s3a://bucket/tables") == "s3a://bucket/tables"
    assert local(Path("a")) == Path("a")


@pytest.mark.parametrize("command", ["report", "rules"])
def test_commands_that_read_files_say_how_to_copy_tables(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, which can be copied."""
    assert main([command, "--tables", "s3a://bucket/tables", "--out", "x"]) == 1

    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"kinmqtt-metrics {command}: s3a://bucket/tables is not a folder of this machine")
    assert "aws s3 sync s3://bucket/tables tables --exclude '.pipeline/*'" in said
    assert "hadoop fs -get s3a://bucket/tables tables" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--from", "kafka"], "--from kafka needs --servers"),
        (["--from", "kafka", "--servers", "h:1", "--landing", "."], "--from kafka reads no folder"),
        (["--servers", "h:1", "--landing", "."], "--servers and --kafka-config need --from kafka"),
        ([], "--landing is required: the folder that the broker writes to; or --from kafka"),
    ],
)
def test_a_source_that_is_not_whole_is_told(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Spark starts."""
    assert main(["pipeline", "run", "--tables", str(tmp_path), *options]) == 1
    assert says in capsys.readouterr().err
