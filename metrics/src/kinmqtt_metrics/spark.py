"""Spark, started: with what a person must install where it can't be."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kinmqtt_metrics.errors import ENDED, INTERRUPTED, SparkError
from kinmqtt_metrics.quiet import Passing

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import DataFrame, SparkSession

LEAST_JAVA: Final = 17

SETTINGS: Final = {
    # Java's second compiler takes more computing time than it saves: records are Arrow's, sums are what is left.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Spark's own form of old is read as a local time by other readers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Shapes are known and batches small: looking for a better plan in each costs more than it gains.
    "spark.sql.adaptive.enabled": "false",
    # A sum beyond 64 bits must not end the pipeline for good.
    "spark.sql.ansi.enabled": "false",
    # Sketches are objects, and sorted on disk above so many keys; 128 is what Spark has.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "20000",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    # A hundred lines of Java for each error that is told in one of ours; --conf spark.log.level=ERROR shows them.
    "spark.log.level": "FATAL",
}


def start(
    master: str, conf: Mapping[str, str], name: str = "kinmqtt-metrics", passing: Passing | None = None
) -> SparkSession:
    """A session. Raises :class:`SparkError` where Spark is not installed, or does not start.

    What its Java process says on stderr goes through ``passing``, where that is given.
    """
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkError(
            f"Spark is not installed for {sys.executable} ({error}): pip install 'kinmqtt-metrics[pipeline]'"
        ) from error
    # Workers run the Python that runs this, unless told otherwise, and have the same packages then.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["TZ"] = "UTC"
    time.tzset()
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": "2", **conf}
    spark = None
    try:
        with _broken_off_by_interrupts():
            _context(SparkConf().setMaster(master).setAppName(name).setAll(list(settings.items())), passing)
        spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
        # Settings of SQL are looked at when they are asked for first.
        spark.conf.get("spark.sql.session.timeZone")
    except BaseException as error:
        if spark is not None:
            spark.stop()
        if not isinstance(error, Exception):
            raise
        raise SparkError(f"Spark did not start: {_why(error, master, conf)}") from error
    return spark


def _context(conf: SparkConf, passing: Passing | None) -> None:
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    # A Java process that runs already has its stderr: another session's, or that of who started this by spark-submit.
    if passing is None or SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext.getOrCreate(conf)
        return
    with passing.pipe() as stderr:
        gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)


@contextmanager
def _broken_off_by_interrupts() -> Iterator[None]:
    """^C ends this process at once. Spark's own handler, which raises wherever the driver is, does not stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: break_off(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def break_off(status: int) -> None:
    """End this process while Spark starts. Its Java process finds that nobody listens any more, and ends.

    An exception would leave it half started, waiting for a folder that is gone, and telling of it at length.
    """
    if status == INTERRUPTED:
        os.write(sys.stderr.fileno(), ENDED.encode() + b"\n")
    os._exit(status)


def _why(error: Exception, master: str, conf: Mapping[str, str]) -> str:
    java = java_version()
    needed = f"install a Java runtime of version {LEAST_JAVA} or later and point JAVA_HOME to it"
    if java is None:
        where = os.environ.get("JAVA_HOME")
        return f"there is no Java{f' in JAVA_HOME ({where})' if where else ''}: {needed}"
    if java < LEAST_JAVA:
        return f"Java is of version {java}: {needed}"
    said = innermost(error)
    if conf:
        return f"{said} (is what --conf says of {', '.join(conf)} right?)"
    if not master.startswith("local"):
        return f"{said} (is a master of the same version of Spark reachable at {master}?)"
    return said


_CAUSE: Final = re.compile(r"^(?:: |Caused by: )(\S.*)$", re.MULTILINE)


def innermost(error: Exception) -> str:
    """The innermost of what Java told, or the first line."""
    text = f"{error}\n{getattr(error, '_stackTrace', None) or ''}".strip()
    causes = _CAUSE.findall(text)
    return str(causes[-1] if causes else text.splitlines()[0] if text else type(error).__name__)[:500]


def java_version() -> int | None:
    """Of the Java that Spark takes; nothing where there is none."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if program is None:
        return None
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?([0-9]+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


_PATTERN: Final = re.compile(r"[\\\[\]{}*?]")
"""What makes a path a pattern where Spark reads; Hadoop's own sign before it takes that away."""


def location(path: Path) -> str:
    """A path as Spark takes it where it writes: whole, as what stands before a ``:`` would be a scheme.

    Hadoop decodes nothing: in a URI a space or ``%`` would be other signs than the path's.
    """
    return f"file:{path.resolve()}"


def read_parquet(spark: SparkSession, schema: str, paths: Iterable[Path]) -> DataFrame:
    """Files, or folders of files, whatever their paths look like; of the columns that are given.

    ``__globPaths__`` is no way out: with it Spark reads each of several paths once for each that has a sign.
    """
    return spark.read.schema(schema).parquet(*(_PATTERN.sub(r"\\\g<0>", location(path)) for path in paths))


def check_path(path: Path, only_named: bool = False) -> None:
    """Raises :class:`SparkError` for a path that Spark can't take. ``only_named`` is one that Python alone opens."""
    whole = str(path.resolve())
    if any("\ud800" <= c <= "\udfff" for c in whole):
        why = "bytes that are not UTF-8, which Spark can't name; use a folder with another name"
    elif only_named:
        return
    elif ":" in whole and (sign := _PATTERN.search(whole)):
        why = (
            f"both ':' and {sign[0]!r}: Spark can't read such a path; use a folder whose path has at most one of them"
        )
    elif not whole.isascii() and not _has_utf8(os.environ):
        odd = next(c for c in whole if not c.isascii())
        why = f"{odd!r}, which Java can't write in this locale: set LC_ALL=C.UTF-8, or use another folder"
    else:
        return
    raise SparkError(f"{whole.encode('utf-8', 'backslashreplace').decode()}: the path has {why}")


def _has_utf8(environ: Mapping[str, str]) -> bool:
    """Whether Java will name files in UTF-8. Python itself says so in LC_CTYPE where nobody has said anything."""
    said = next((environ[key] for key in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(key)), "")
    return sys.platform != "linux" or "utf" in said.lower()


def lock_jvm(spark: SparkSession, path: Path, wait_s: float = 30.0) -> Any:
    """Hold a lock in Spark's Java process for as long as it runs; what is returned must be kept.

    Where a driver was killed its Java process ends a moment later, and could still write into the checkpoint: it is
    waited for. Raises :class:`SparkError`.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    until = time.monotonic() + wait_s
    while True:
        lock = file.getChannel().tryLock()
        if lock is not None:
            return file, lock
        if time.monotonic() > until:
            raise SparkError(
                f"a Java process of another pipeline still holds {path}: find it (lsof {path}), stop it, "
                "and start again"
            )
        time.sleep(0.1)
