"""Commits: what a batch made, as one rename made it count.

.. code-block:: text

    tables/.pipeline/lock                 held by the driver; `jvm.lock` by its Java process
    tables/.pipeline/v1/settings.json     what can't change
    tables/.pipeline/v1/spark/            Spark's checkpoint: which batch has which segments
    tables/.pipeline/v1/steps/0000000012/
      step.json                           nodes and their bounds, what was seen of each life
      state/closed=false/                 windows that are open, for the next batch
      tables/rates/batch-0000000012.parquet  what is to be moved to tables/rates/

A step is made beside the others under a name that begins with a dot, brought to the disk and renamed. From then on
its batch is not computed again; files that are still below its ``tables`` are moved, which can be repeated. A batch
that Spark begins again finds its step or makes it anew, from the same segments.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from attrs import Factory, define, field

from kinmqtt_metrics import missing_records
from kinmqtt_metrics.durable import make_folder, rename, replace_text, sync
from kinmqtt_metrics.errors import PipelineError, UnpublishedError
from kinmqtt_metrics.intervals import Intervals
from kinmqtt_metrics.missing_records import Life
from kinmqtt_metrics.pipeline.watermarks import Node
from kinmqtt_metrics.tables import OWN, STATE, TABLES, Table

_FINAL: Final = "-final"
_CLOSED: Final = "-closed-"
_MAKING: Final = ".making-"
STEP: Final = "step.json"
"""What a step leaves to the next, in its folder."""


@define(slots=True)
class Commit:
    """What a batch leaves to the next."""

    nodes: dict[str, Node] = field(factory=dict)
    seen: dict[Life, Intervals] = field(factory=dict)
    open: tuple[Path, ...] = ()
    """Where windows lie that are open: Parquet."""
    counts: dict[str, int] = field(factory=dict)
    """What to tell of the batch."""
    digest: str = ""
    """What Spark wrote down of which segments the batch has, as a digest."""

    def write(self, folder: Path) -> None:
        """Beside the state."""
        text = {
            "nodes": {name: [node.newest, node.bound, node.heard_s] for name, node in self.nodes.items()},
            "seen": missing_records.to_json(self.seen),
            "counts": self.counts,
            "digest": self.digest,
        }
        (folder / STEP).write_text(json.dumps(text), "utf-8")

    @classmethod
    def read(cls, folder: Path, where: Path | str) -> Commit:
        """Raises :class:`PipelineError` where it can't be read, which names ``where`` the tables are."""
        try:
            text: dict[str, Any] = json.loads((folder / STEP).read_text("utf-8"))
            return cls(
                {name: Node(*of) for name, of in text["nodes"].items()},
                missing_records.from_json(text["seen"]),
                tuple(sorted((folder / "state" / "closed=false").glob("*.parquet"))),
                text["counts"],
                text["digest"],
            )
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise PipelineError(
                f"{where}: what the step {folder.name} has left ({STEP}) can't be read ({error}): restore {STATE} "
                "with the tables from a backup, or start again in an empty folder of tables, which reads everything "
                "again"
            ) from error


@define(slots=True)
class Commits:
    """The steps of a folder of tables."""

    tables: Path
    folder: Path = field(init=False, default=Factory(lambda self: self.tables / STATE / "steps", takes_self=True))

    @property
    def where(self) -> Path | str:
        """Where the tables are, for people."""
        return self.tables

    @property
    def checkpoint(self) -> Path:
        """Spark's."""
        return self.tables / STATE / "spark"

    def prepare(self, frozen: dict[str, Any]) -> None:
        """Make the folders, or check that what can't change is what it was; end what a run before left undone.

        Raises :class:`PipelineError`.
        """
        make_folder(self.folder)
        path = self.tables / STATE / "settings.json"
        if path.exists():
            try:
                began: dict[str, Any] = json.loads(path.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise PipelineError(f"{path} can't be read: {error}") from error
            check_settings(began, frozen, self.tables)
        else:
            known = next((files[0] for table in TABLES if (files := table.files(self.tables))), None)
            if known is not None:
                # From the beginning again, each record would be in the tables twice.
                raise PipelineError(
                    f"{self.tables} has tables ({known.parent.name}/{known.name}), and {path.parent}, which says "
                    "what they were made from, is gone: restore it, or use another folder of tables"
                )
            replace_text(path, json.dumps(frozen))
        for left in self.folder.glob(_MAKING + "*"):
            # Tasks of a driver that was killed may still write there; nobody looks at it.
            shutil.rmtree(left, ignore_errors=True)
        for name in self._names():
            self.publish(self.folder / name)
        self._mend_checkpoint()

    def _mend_checkpoint(self) -> None:
        """Remove what a power failure emptied last: Spark begins that batch again; its step is there or made anew.

        Raises :class:`PipelineError` where an entry is empty that nothing stands for.
        """
        for kind in ("commits", "offsets"):
            entries = {int(path.name): path for path in (self.checkpoint / kind).glob("*") if path.name.isdecimal()}
            for number in sorted(entries, reverse=True):
                path = entries[number]
                if path.stat().st_size:
                    break
                if kind == "offsets" and self.done(number):
                    raise PipelineError(
                        f"{path} is empty, probably after a power failure, but its batch was committed: restore "
                        f"{self.tables} from a backup, or start again in an empty folder of tables"
                    )
                path.unlink()
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
                sync(path.parent)

    def _names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name[0] != ".")

    def done(self, batch: int) -> bool:
        """Whether this batch was made already."""
        return (self.folder / commit_name(batch)).exists()

    def written(self, batch: int) -> Commit:
        """What a batch left that was made. Raises :class:`PipelineError` where it can't be read."""
        return Commit.read(self.folder / commit_name(batch), self.where)

    def offsets(self, batch: int) -> str:
        """A digest of what Spark wrote down of a batch; from here on it is on the disk."""
        folder = self.checkpoint / "offsets"
        for path in (self.checkpoint / "metadata", folder / str(batch), folder, self.checkpoint):
            sync(path)
        return sha256((folder / str(batch)).read_bytes()).hexdigest()

    def last(self) -> tuple[str | None, Commit]:
        """The latest step and its name; an empty one at the beginning."""
        names = self._names()
        return (names[-1], Commit.read(self.folder / names[-1], self.where)) if names else (None, Commit())

    @contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """A folder to make a step in. When the block ends, all of it is on the disk and counts."""
        # A name of its own each time: tasks of a driver that was killed may still write to theirs.
        folder = self.folder / f"{_MAKING}{name}-{uuid4().hex[:8]}"
        folder.mkdir()
        try:
            yield folder
            for path in sorted(folder.rglob("*")):
                if path.is_dir() or path.suffix in (".parquet", ".json"):
                    sync(path)
            sync(folder)
            rename(folder, self.folder / name)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def publish(self, folder: Path) -> None:
        """Move a step's files to where readers look. What was moved before is no more there to be moved.

        Raises :class:`UnpublishedError`.
        """
        with self.after_commit():
            for path in sorted(folder.glob("tables/*/*.parquet")):
                target = self.tables / path.parent.name
                make_folder(target)
                rename(path, target / path.name)

    @contextmanager
    def after_commit(self) -> Iterator[None]:
        """What fails within the block is told as what it is: the batch counts. Raises :class:`UnpublishedError`."""
        try:
            yield
        except Exception as error:
            raise UnpublishedError(
                f"the last batch counts, but not all of its files are in {self.where} yet ({error}). Start again: "
                "the same command moves the others first"
            ) from error

    def forget(self, keep: int = 2) -> None:
        """Remove steps that are published and that Spark can't come back to, but for the last ones."""
        for name in self._names()[:-keep]:
            shutil.rmtree(self.folder / name, ignore_errors=True)


def check_settings(began: Mapping[str, Any], frozen: Mapping[str, Any], tables: Path | str) -> None:
    """Raises :class:`PipelineError` if a run has other settings than the tables were made with."""
    for key, value in frozen.items():
        # Tables of before there was another source.
        before = began.get(key, "landing" if key == "source" else None)
        if before != value:
            why = "windows of different kinds don't add up" if key == "window_s" else "it would not go on from there"
            raise PipelineError(
                f"{tables} was made with {key} = {before}, but this run has {value}: {why}. Use {before} again, or "
                "another folder of tables"
            )


def commit_name(batch: int, final: bool = False) -> str:
    """Names sort as steps follow each other."""
    return f"{batch:010d}{_FINAL if final else ''}"


def idle_commit_name(last: str) -> str:
    """Of a step that closes windows between two batches; it follows ``last``, and the close at the end follows it."""
    _, between, number = last.partition(_CLOSED)
    return f"{last[:10]}{_CLOSED}{int(number) + 1 if between else 1:04d}"


def placed(folder: Path, table: Table, name: str, number: str = "") -> Path:
    """Where a step's file of a table lies until it is published."""
    target = folder / "tables" / table.name
    target.mkdir(parents=True, exist_ok=True)
    return target / f"batch-{name}{number}.parquet"


def place(folder: Path, table: Table, name: str, files: list[Path]) -> None:
    """Put files there: one under the step's name, several with a number each."""
    for number, path in enumerate(files):
        path.rename(placed(folder, table, name, f"-{number:04d}" if len(files) > 1 else ""))


@contextmanager
def locked(tables: Path) -> Iterator[None]:
    """Hold the folder of tables against a second driver. Raises :class:`PipelineError` where one has it."""
    folder = tables / OWN
    make_folder(folder)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise PipelineError(
                f"process {file.read().strip() or '(unknown)'} already writes to {tables}: two pipelines would write "
                f"everything twice. Stop that one, or use another folder for the tables"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
