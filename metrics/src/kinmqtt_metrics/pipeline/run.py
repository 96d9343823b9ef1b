"""A run: one query, from its start to its end."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from attrs import define, field

from kinmqtt_metrics import missing_records
from kinmqtt_metrics.errors import INTERRUPTED, CommandError, PipelineError
from kinmqtt_metrics.landing import SUFFIX
from kinmqtt_metrics.pipeline.commits import Commits, locked
from kinmqtt_metrics.pipeline.hadoop import HadoopError, HadoopFolder
from kinmqtt_metrics.pipeline.settings import PipelineSettings
from kinmqtt_metrics.pipeline.sources import CONNECTOR, source_of
from kinmqtt_metrics.quiet import GRACE_S, Passing, quiet_after
from kinmqtt_metrics.spark import break_off, check_path, location, lock_jvm, start
from kinmqtt_metrics.tables import OWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kinmqtt_metrics.pipeline.batches import Batches, Tell

_LOOK_S = 1
"""How often it is looked whether to end."""

_GIVE_UP_S = 30.0
"""How long a batch that is given up may take to notice."""

_IDLE_LOOK_S = 5
"""How often it is looked whether nodes have fallen silent, while nothing is read."""


def run(settings: PipelineSettings, tell: Tell) -> None:
    """Run until everything is read (``once``), or a signal comes. Raises :class:`CommandError`.

    A signal while Spark starts ends this process: nothing has begun that could be ended well.
    """
    try:
        _check(settings)
        asked = Asked()
        with ExitStack() as held:
            if settings.local is not None:
                held.enter_context(locked(settings.local))
            held.enter_context(asked.heard())
            held.enter_context(quiet_after(asked.ending))
            _run(settings, tell, asked)
    except OSError as error:
        raise PipelineError(_of_files(error, settings)) from error


def _run(settings: PipelineSettings, tell: Tell, asked: Asked) -> None:
    passing = Passing(asked.ending)
    try:
        spark = start(settings.master, settings.conf, passing=passing)
    except CommandError:
        # Who ends a service may signal its Java process as well, and that may be noticed first.
        time.sleep(GRACE_S)
        raise
    try:
        jvm_lock = None
        if settings.local is not None:
            jvm_lock = lock_jvm(spark, settings.local / OWN / "jvm.lock")
        asked.started()
        read(settings, spark, asked, tell)
        # Java's lock ends with its process, which is later; until here the object of this name kept it.
        del jvm_lock
    finally:
        _stop(spark)
        passing.flush()


def _check(settings: PipelineSettings) -> None:
    if settings.topic is None:
        _check_landing(settings.landing)
    if settings.local is not None:
        check_path(settings.local)
        settings.local.mkdir(parents=True, exist_ok=True)
        _check_apart(settings.landing, settings.local.resolve())


def _check_landing(landing: Path | None) -> None:
    if landing is None:
        raise PipelineError("--landing is required: the folder that the broker writes to; or --from kafka")
    if not landing.is_dir():
        raise PipelineError(
            f"{landing} is not a folder: --landing is the folder that the broker writes to, `landing` of "
            f"[plugins.metrics]"
        )
    check_path(landing, only_named=True)
    _check_readable(landing)


def _check_apart(landing: Path | None, tables: Path) -> None:
    landing = None if landing is None else landing.resolve()
    if landing is not None and (landing == tables or landing in tables.parents):
        raise PipelineError(f"the tables can't be in the landing folder {landing}: use another folder for --tables")


def _check_readable(landing: Path) -> None:
    """Of segments the one of the latest day that comes first: their owner and mode are those of the others."""
    try:
        days = sorted(path for path in landing.glob("date=*") if path.is_dir())
        # Who is no file, a link to nowhere, say, is not what the others are like.
        files = (path for day in days[-1:] for path in day.glob("*" + SUFFIX) if path.is_file())
        paths = [landing, *days, *islice(files, 1)]
    except PermissionError as error:
        paths = [Path(error.filename)]
    for path in paths:
        if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
            raise PipelineError(
                f"{path} can't be read by this user: segments belong to the broker's user and group; run as one "
                "of these"
            )


def read(settings: PipelineSettings, spark: SparkSession, asked: Asked, tell: Tell) -> None:
    """Run the query in a session, until it is done or shall end. Raises :class:`PipelineError`."""
    with _commits(settings, spark) as steps:
        _read(settings, spark, steps, asked, tell)


@contextmanager
def _commits(settings: PipelineSettings, spark: SparkSession) -> Iterator[Commits]:
    """The steps of the tables; of tables elsewhere they are made in a folder that ends with the block."""
    if settings.local is not None:
        # Whole: of a relative path pyarrow takes what stands before a ':' for a scheme.
        yield Commits(settings.local.resolve())
        return
    from kinmqtt_metrics.pipeline.remote_commits import RemoteCommits

    work = Path(tempfile.mkdtemp(prefix="kinmqtt-pipeline-")).resolve()
    try:
        yield RemoteCommits(work, remote=HadoopFolder(spark, str(settings.tables)))
    except HadoopError as error:
        raise PipelineError(f"the tables can't be reached: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _read(settings: PipelineSettings, spark: SparkSession, steps: Commits, asked: Asked, tell: Tell) -> None:
    from kinmqtt_metrics.pipeline.batches import Batches, open_nodes

    source = source_of(settings, spark)
    steps.prepare({"window_s": settings.window_s, "source": source.name})
    query = _Query(Batches(settings, steps, tell, source=source), asked.ending)
    try:
        query.run(settings, spark, tell)
    except Exception as error:
        # As above: Java may have been ended before this process heard of it.
        if not asked.ending.wait(GRACE_S):
            raise PipelineError(_why(query.failed[-1] if query.failed else error, settings)) from error
    if asked.ending.is_set():
        query.give_up()
        _, last = steps.last()
        waiting = f". Windows that are open wait for it: {open_nodes(last.nodes)}" if last.open else ""
        # What seems to be missing may be what was not read yet: a run that reads to the end says so.
        tell(f"ended by {asked.by}; the same command goes on from here{waiting}")
        return
    _closed(query.batches, settings)
    _, last = steps.last()
    for sentence in missing_records.sentences(last.seen):
        tell(sentence)
    if last.open:
        tell(f"windows that are open wait for the next run: {open_nodes(last.nodes)}")


class _GivenUpError(Exception):
    """Why Spark is told that a batch failed; :attr:`_Query.failed` has more.

    It is short, whatever happened. Spark looks through what it is told for an interrupt when a query is stopped, by
    an expression that overflows Java's stack where the text is long, as an error of Java's is: a thousand lines.
    """


@define(slots=True, eq=False)
class _Query:
    """The query, and whether one of its batches is under way."""

    batches: Batches
    ending: threading.Event
    failed: list[BaseException] = field(init=False, factory=list)
    _stepping: threading.Lock = field(init=False, factory=threading.Lock)

    def run(self, settings: PipelineSettings, spark: SparkSession, tell: Tell) -> None:
        """Until all is read, or it shall end. Raises what Spark does."""
        source = self.batches.source
        writing = source.stream(spark).writeStream.foreachBatch(self._batch)
        writing = writing.option("checkpointLocation", location(self.batches.steps.checkpoint)).queryName("kinmqtt")
        if settings.once or settings.final:
            writing = writing.trigger(availableNow=True)
        else:
            writing = writing.trigger(processingTime=f"{settings.trigger_s:.6f} seconds")
            tell(f"reading {source.root or source.name}, writing {settings.tables}; ^C ends this")
        query = writing.start()
        look_s = time.monotonic()
        while not query.awaitTermination(_LOOK_S):
            if self.ending.is_set():
                query.stop()
                break
            if time.monotonic() - look_s >= _IDLE_LOOK_S and self._stepping.acquire(blocking=False):
                try:
                    self.batches.close_idle()
                finally:
                    self._stepping.release()
                look_s = time.monotonic()

    def _batch(self, rows: DataFrame, number: int) -> None:
        try:
            with self._stepping:
                if self.ending.is_set():
                    raise _GivenUpError
                self.batches.batch(rows, number)
        except BaseException as error:
            self.failed.append(error)
            raise _GivenUpError(type(error).__name__) from None

    def give_up(self) -> None:
        """Wait until no batch is under way: what it made counts, or is removed. None begins after ``ending``."""
        if self._stepping.acquire(timeout=_GIVE_UP_S):
            self._stepping.release()


def _closed(batches: Batches, settings: PipelineSettings) -> None:
    """What a run that ends by itself closes: every window, or those of nodes that have been silent."""
    try:
        if settings.final:
            batches.final()
        elif settings.once:
            batches.close_idle()
    except Exception as error:
        raise PipelineError(_why(error, settings)) from error


def _why(error: BaseException, settings: PipelineSettings) -> str:
    if isinstance(error, CommandError):
        return str(error)
    text = str(error)
    after = "No table shows anything of the batch that failed; the same command goes on from there"
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return f"the disk of {_disk(settings)} (or of Spark's temporary files) is full: make room. {after}"
    if "find data source: kafka" in text or "find the data source: kafka" in text:
        return f"Spark has no connector to Kafka: --conf spark.jars.packages={CONNECTOR}:{_spark_version()}"
    if "Answer from Java side is empty" in text or "Connection refused" in text or "py4j.protocol" in text:
        return f"Spark's Java process has ended (killed, or out of memory: --conf spark.driver.memory=2g). {after}"
    lines = [line for line in text.splitlines() if line.strip()]
    said = next(
        (line for line in reversed(lines) if "Error: " in line or "Exception: " in line), lines[0] if lines else ""
    )
    more = "--conf spark.log.level=ERROR tells more"
    return f"a batch failed: {type(error).__name__}: {said.strip()[:500]} ({more}). {after}"


def _disk(settings: PipelineSettings) -> Path:
    """The folder of this machine that a run writes to: of tables elsewhere, steps are made in a temporary one."""
    return Path(tempfile.gettempdir()) if settings.local is None else settings.local


def _spark_version() -> str:
    import pyspark

    return pyspark.__version__


def _stop(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:
        # Its Java process is gone already: there is nothing to stop.
        logging.getLogger(__name__).debug("Spark was gone before it was stopped", exc_info=True)


def _of_files(error: OSError, settings: PipelineSettings) -> str:
    """Of what stands before or after the batches: folders, locks, settings."""
    where = error.filename or _disk(settings)
    other = "another folder for --tables" if settings.local is not None else "another temporary folder (TMPDIR)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {where} is full: make room, and start again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reading = "" if settings.landing is None else f"read {settings.landing} and to "
        return (
            f"{where}: {error.strerror}: this user must be able to {reading}write to {_disk(settings)}; run as their "
            f"owner, or take {other}"
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
        return (
            f"{where}: {error.strerror}: something else stands where the pipeline has a file or folder of its own; "
            f"move it away, or take {other}"
        )
    return f"{where}: {error.strerror or error}"


@define(slots=True)
class Asked:
    """Whether SIGTERM or ^C has asked this process to end."""

    ending: threading.Event = field(factory=threading.Event)
    by: str = "a signal"
    """By what, as a person knows it."""
    _starting: bool = field(init=False, default=True)

    def started(self) -> None:
        """From now on a signal interrupts nothing: the batch that runs is given up, which costs only its time."""
        self._starting = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Within the block signals are heard, if this is the thread that can."""

        def end(number: int, _frame: FrameType | None) -> None:
            self.by = "^C" if number == signal.SIGINT else signal.Signals(number).name
            self.ending.set()
            if self._starting:
                break_off(INTERRUPTED if number == signal.SIGINT else 0)

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        both = (signal.SIGTERM, signal.SIGINT)
        before: dict[signal.Signals, Any] = {each: signal.signal(each, end) for each in both}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
