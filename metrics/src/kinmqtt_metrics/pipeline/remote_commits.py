"""Commits where there is no rename of folders: on object stores, and whatever else Hadoop speaks.

.. code-block:: text

    s3a://bucket/tables/.pipeline/v1/settings.json             what can't change
    s3a://bucket/tables/.pipeline/v1/log/000000/0000000041.json  the 41st commit
    s3a://bucket/tables/.pipeline/v1/made/0000000012-8c3f…/    what a step made: the state, and tables to be moved
    s3a://bucket/tables/rates/batch-0000000012.parquet         where readers look

A step is made in a folder of this machine, and copied there under a name that nobody has used. Then its commit is
created under the next number, which succeeds only where there is none: this makes it count. It names the files, has
what a batch leaves to the next, and what Spark has written down of the batch (the offsets), so that a driver on
another machine can go on. Last, files are moved to where readers look, each whole or not there; this can be repeated,
and is before anything else when a run begins. What was copied without a commit is looked at by nobody.

Of two drivers that write at once one finds its number taken and ends: the other's batch counts, and its own does not.
Commits stay, because a driver that has slept must find every number taken that was ever used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from attrs import define, field

from kinmqtt_metrics.errors import PipelineError
from kinmqtt_metrics.pipeline.commits import STEP, Commits, check_settings
from kinmqtt_metrics.pipeline.hadoop import HadoopFolder
from kinmqtt_metrics.tables import STATE, TABLES

_SETTINGS: Final = f"{STATE}/settings.json"
_LOG: Final = f"{STATE}/log"
_MADE: Final = f"{STATE}/made"
_IN_FOLDER: Final = 10_000
"""Commits; the latest is found by listing two folders."""
_KEEP: Final = 2
"""So many of the latest steps keep what they made: one for the driver that goes on, one for who is just reading."""


@define(slots=True)
class RemoteCommits(Commits):
    """The steps of tables elsewhere. ``tables`` is a folder of this machine to work in, empty at first."""

    remote: HadoopFolder = field(kw_only=True)
    _number: int = field(init=False, default=0)
    """Of the last commit."""
    _made: list[str] = field(init=False, factory=list)
    """Folders with what the latest steps made."""
    _moves: list[tuple[str, str]] = field(init=False, factory=list)
    """Files of the last commit, and where they go."""

    @property
    def where(self) -> str:
        """The URL."""
        return self.remote.url

    def prepare(self, frozen: dict[str, Any]) -> None:
        """Take over what the last commit left; end what a run before left undone. Raises :class:`PipelineError`."""
        self.folder.mkdir(parents=True)
        self._check_settings(frozen)
        self._number = self._latest()
        if self._number:
            path = _commit_path(self._number)
            text = self._text(path)
            try:
                commit = json.loads(text)
                self._restore(commit)
            except (ValueError, LookupError, TypeError) as error:
                raise PipelineError(
                    f"{self.where}/{path} can't be read ({error!r}): restore it from a backup, or start again in an "
                    "empty folder of tables, which reads everything again"
                ) from error
            self._publish()
            self._clean(int(commit["name"][:10]))

    def _check_settings(self, frozen: dict[str, Any]) -> None:
        content = json.dumps(frozen).encode()
        if self.remote.create(_SETTINGS, content):
            known = next((t.name for t in TABLES if self.remote.names(t.name)), None)
            if known is not None:
                self.remote.remove(_SETTINGS)
                raise PipelineError(
                    f"{self.where} has tables ({known}), and {STATE}, which says what they were made from, is "
                    "gone: restore it, or use another folder of tables"
                )
            # A store that takes it twice would let two drivers commit the same number.
            if self.remote.create(_SETTINGS, content):
                raise PipelineError(
                    f"{self.where}: this store overwrites a file that was to be created only if it is not "
                    "there. It can't hold tables: use one with conditional writes (If-None-Match), such as S3"
                )
        check_settings(json.loads(self._text(_SETTINGS)), frozen, self.where)

    def _text(self, name: str) -> str:
        path = self.tables / f"fetched-{uuid4().hex}"
        self.remote.get(name, path)
        text = path.read_text("utf-8")
        path.unlink()
        return text

    def _latest(self) -> int:
        for folder in reversed(self.remote.names(_LOG)):
            names = self.remote.names(f"{_LOG}/{folder}")
            if names:
                return int(names[-1].removesuffix(".json"))
        return 0

    def _restore(self, commit: dict[str, Any]) -> None:
        """Lay the last step, and Spark's checkpoint of its batch, where a driver here would have left them."""
        folder = self.folder / commit["name"]
        state = folder / "state" / "closed=false"
        state.mkdir(parents=True)
        (folder / STEP).write_text(json.dumps(commit["step"]), "utf-8")
        for name in commit["state"]:
            self.remote.get(f"{_MADE}/{commit['made']}/state/{name}", state / name)
        batch = self.folder / commit["name"][:10]
        if batch != folder:
            batch.mkdir()
            step = {"nodes": {}, "seen": [], "counts": {}, "digest": commit["digest"]}
            (batch / STEP).write_text(json.dumps(step), "utf-8")
        for name, text in commit["spark"].items():
            path = self.checkpoint / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        self._made = [commit["made"]]
        self._moves = _moves(commit)

    def _clean(self, batch: int) -> None:
        """Remove what earlier runs left of batches before this one: nobody can commit these any more."""
        for made in self.remote.names(_MADE):
            if int(made[:10]) < batch:
                self.remote.remove(f"{_MADE}/{made}")

    @contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """A folder of this machine to make a step in. When the block ends without an error, the step counts."""
        with Commits.making(self, name) as folder:
            yield folder
        self._commit(name)

    def _commit(self, name: str) -> None:
        folder = self.folder / name
        made = f"{name}-{uuid4().hex}"
        state = sorted(path.name for path in (folder / "state" / "closed=false").glob("*.parquet"))
        for each in state:
            self.remote.put(folder / "state" / "closed=false" / each, f"{_MADE}/{made}/state/{each}")
        tables: dict[str, list[str]] = {}
        for path in sorted(folder.glob("tables/*/*.parquet")):
            tables.setdefault(path.parent.name, []).append(path.name)
            self.remote.put(path, f"{_MADE}/{made}/tables/{path.parent.name}/{path.name}")
        batch = int(name[:10])
        commit = {
            "id": made,
            "name": name,
            "made": made,
            "step": json.loads((folder / STEP).read_text("utf-8")),
            "state": state,
            "tables": tables,
            "digest": self.written(batch).digest,
            "spark": self._checkpoint(batch),
        }
        path_of_commit = _commit_path(self._number + 1)
        created = self.remote.create(path_of_commit, json.dumps(commit).encode())
        if not created and json.loads(self._text(path_of_commit))["id"] != made:
            raise PipelineError(
                f"another pipeline writes to {self.where}: it was faster, and its batch counts. Stop one of the "
                "two, or use another folder for the tables; no table shows anything of this batch"
            )
        self._number += 1
        self._made.append(made)
        self._moves = _moves(commit)

    def _checkpoint(self, batch: int) -> dict[str, str]:
        """What Spark needs to go on after a batch: it compares with the one before."""
        names = ["metadata", *(f"offsets/{number}" for number in (batch - 1, batch) if number >= 0)]
        return {name: (self.checkpoint / name).read_text("utf-8") for name in names}

    def publish(self, folder: Path) -> None:
        """Move the last step's files to where readers look; those of steps before are there.

        Raises :class:`UnpublishedError`.
        """
        self._publish()
        for path in folder.glob("tables/*/*.parquet"):
            path.unlink()

    def _publish(self) -> None:
        with self.after_commit():
            for source, target in self._moves:
                self.remote.move(source, target)
        self._moves = []

    def forget(self, keep: int = _KEEP) -> None:
        """Remove what steps made that nobody goes on from. Raises :class:`UnpublishedError`."""
        Commits.forget(self, keep)
        with self.after_commit():
            for made in self._made[:-keep]:
                self.remote.remove(f"{_MADE}/{made}")
        self._made = self._made[-keep:]


def _commit_path(number: int) -> str:
    return f"{_LOG}/{number // _IN_FOLDER:06d}/{number:010d}.json"


def _moves(commit: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (f"{_MADE}/{commit['made']}/tables/{table}/{name}", f"{table}/{name}")
        for table, names in commit["tables"].items()
        for name in names
    ]
