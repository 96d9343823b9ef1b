"""The landing folder as it is listed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from segments import publish

from kinmqtt_metrics.source import folder as module
from kinmqtt_metrics.source.folder import Folder


def test_a_segment_of_the_same_moment_as_the_last_listing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long nobody has looked since: file systems count time in steps, and both were in one of these."""
    now_ns = [1_700_000_000_000_000_000]
    monkeypatch.setattr(module.time, "time_ns", lambda: now_ns[0])
    folder = Folder(str(tmp_path))
    found = []
    for number in (1, 2):
        publish(tmp_path, number)
        [day] = tmp_path.glob("date=*")
        os.utime(day, ns=(1_700_000_000_000_000_000,) * 2)
        found.append(sorted(key[2] for key in folder.paths()))
        now_ns[0] += 3_600_000_000_000

    assert found == [[1], [1, 2]]


def test_a_folder_that_had_settled_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Years of days cost one look each."""
    publish(tmp_path, 1)
    [day] = tmp_path.glob("date=*")
    os.utime(day, ns=(1_000_000_000_000_000_000,) * 2)
    folder = Folder(str(tmp_path))
    first = folder.paths()
    monkeypatch.setattr(module.os, "listdir", None)

    assert folder.paths() == first
