"""How the driver and Spark's tasks hand tables to each other: in files that both see, or through Spark.

In one process (``--master local[N]``) tasks write files, and so does Spark. The tasks of a cluster may run anywhere:
what they make goes to the driver in their answers, and the driver's files to them with their questions, so that no
folder has to be on all machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kinmqtt_metrics.pipeline.staging import Made, Staged, staged_file
from kinmqtt_metrics.spark import location, read_parquet

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

CLOSED: Final = "closed"
"""The column that splits the state."""


class Exchange(ABC):
    """Both ways."""

    @abstractmethod
    def task_folder(self, folder: Path) -> str:
        """Where tasks write what they stage; empty where they answer with it."""

    @abstractmethod
    def staged(self, tasks: RDD[Made], folder: Path) -> Iterator[Staged]:
        """Run tasks that stage; what each has found. Their files are in ``folder``, by kind, when it ends."""

    @abstractmethod
    def files(self, spark: SparkSession, files: Sequence[Path]) -> RDD[str | bytes]:
        """Files of the driver's for tasks, one each: their paths, or what is in them."""

    @abstractmethod
    def read(self, spark: SparkSession, schema: str, files: Sequence[Path]) -> DataFrame:
        """Files of Parquet of the driver's as rows, with the columns given."""

    @abstractmethod
    def write(self, rows: DataFrame, folder: Path) -> None:
        """Write rows into files of Parquet in a folder of the driver's."""

    @abstractmethod
    def write_state(self, rows: DataFrame, folder: Path) -> None:
        """The same, into the folders ``closed=false`` and ``closed=true`` by that column."""


class Shared(Exchange):
    """Tasks and driver see the same files."""

    def task_folder(self, folder: Path) -> str:
        """The folder itself."""
        return str(folder.resolve())

    def staged(self, tasks: RDD[Made], folder: Path) -> Iterator[Staged]:
        """A file counts when the driver gives it a name that does not begin with a dot."""
        for text, _ in tasks.collect():
            staged = Staged.of(text)
            for kind, rows in staged.rows.items():
                if rows:
                    path = staged_file(folder, kind, staged.name)
                    path.rename(path.with_name(path.name[1:]))
            yield staged

    def files(self, spark: SparkSession, files: Sequence[Path]) -> RDD[str | bytes]:
        """Their paths."""
        return spark.sparkContext.parallelize([str(path.resolve()) for path in files], max(1, len(files)))

    def read(self, spark: SparkSession, schema: str, files: Sequence[Path]) -> DataFrame:
        """Spark reads them."""
        return read_parquet(spark, schema, files)

    def write(self, rows: DataFrame, folder: Path) -> None:
        """Spark writes them."""
        rows.write.parquet(location(folder))

    def write_state(self, rows: DataFrame, folder: Path) -> None:
        """Spark splits them, too."""
        rows.write.partitionBy(CLOSED).parquet(location(folder))


class Sent(Exchange):
    """Everything goes through Spark; a batch's records, as Parquet, are in the driver's memory meanwhile."""

    def task_folder(self, folder: Path) -> str:
        """None."""
        return ""

    def staged(self, tasks: RDD[Made], folder: Path) -> Iterator[Staged]:
        """The driver writes what tasks answer with."""
        for text, made in tasks.collect():
            staged = Staged.of(text)
            for kind, content in made.items():
                (folder / kind / f"{staged.name}.parquet").write_bytes(content)
            yield staged

    def files(self, spark: SparkSession, files: Sequence[Path]) -> RDD[str | bytes]:
        """What is in them."""
        return spark.sparkContext.parallelize([path.read_bytes() for path in files], max(1, len(files)))

    def read(self, spark: SparkSession, schema: str, files: Sequence[Path]) -> DataFrame:
        """The driver reads them."""
        from pyspark.sql.types import StructType

        wanted = StructType.fromDDL(schema)
        assert isinstance(wanted, StructType)
        tables = [pq.ParquetFile(path).read(columns=wanted.names) for path in files]
        together: Any = pa.concat_tables(tables).select(wanted.names)
        return spark.createDataFrame(together, wanted)

    def write(self, rows: DataFrame, folder: Path) -> None:
        """The driver writes them."""
        self._write(rows.toArrow(), folder)

    def write_state(self, rows: DataFrame, folder: Path) -> None:
        """The driver splits them."""
        table = rows.toArrow()
        for closed in (True, False):
            part = table.filter(pc.equal(table[CLOSED], closed)).drop_columns([CLOSED])
            self._write(part, folder / f"{CLOSED}={str(closed).lower()}")

    @staticmethod
    def _write(rows: pa.Table, folder: Path) -> None:
        if rows.num_rows:
            folder.mkdir(parents=True)
            pq.write_table(rows, folder / "part-0.parquet", compression="zstd", store_schema=False)


def exchange_of(master: str) -> Exchange:
    """Which of them suits where Spark runs."""
    return Shared() if master.split("[")[0] == "local" else Sent()
