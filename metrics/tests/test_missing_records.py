"""Missing records: what the pipeline and the report say of them."""

from __future__ import annotations

from pathlib import Path

from kinmqtt_metrics.intervals import Intervals
from kinmqtt_metrics.missing_records import committed, sentences
from kinmqtt_metrics.pipeline.commits import Commit, Commits, commit_name


def test_gaps_are_told_and_bounded() -> None:
    """Records that were deleted unread, or are not published yet, are named at the end of each run."""
    whole = ("a", "1"), Intervals([(1, 9)])
    torn = ("b", "2"), Intervals([(3, 4), (6, 8)])
    many = [(("c", str(n)), Intervals((2 * k, 2 * k) for k in range(1, 9))) for n in range(5)]

    assert list(sentences(dict([whole]))) == []
    assert list(sentences(dict([whole, torn]))) == ["3 records of b 2 were not read: seq 1-2, 5"]
    assert list(sentences(dict([torn, *many])))[1:] == [
        *(f"8 records of c {n} were not read: seq 1, 3, 5, 7, 9 and 3 more gaps" for n in range(4)),
        "of 1 more lives of brokers records were not read, too",
    ]


def test_what_the_pipeline_wrote_down_last_is_read(tmp_path: Path) -> None:
    """Readers of tables find what its steps have, without it; where there is none, or none that is whole, nothing."""
    assert committed(tmp_path) is None
    steps = Commits(tmp_path)
    steps.prepare({})
    assert committed(tmp_path) is None
    for batch in range(3):
        seen = {("n1", "b1"): Intervals([(1, 5 + batch)]), ("n2", "b2"): Intervals([(1, 2), (7, 9)])}
        with steps.making(commit_name(batch)) as folder:
            Commit(seen=seen).write(folder)
        assert committed(tmp_path) == seen == steps.last()[1].seen
    (steps.folder / ".making-9").mkdir()
    assert committed(tmp_path) == seen
    (steps.folder / commit_name(2) / "step.json").write_text('{"seen": [[1]]}')
    assert committed(tmp_path) is None
