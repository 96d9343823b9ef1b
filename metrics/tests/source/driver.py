"""A driver that a test kills: it reads a landing folder as a stream and keeps each batch in a file.

    python driver.py LANDING FOLDER [BATCH]

After it has kept BATCH, and before Spark can note that the batch is done, it is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(landing: str, folder: Path, last: int) -> None:
    """Read what is available."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )

    def keep(batch: DataFrame, number: int) -> None:
        rows = sorted(json.dumps(row.asDict(), sort_keys=True) for row in batch.collect())
        text = "\n".join(rows)
        file = folder / f"batch-{number}"
        if file.exists():
            print("repeated", number, "the same" if file.read_text() == text else "ANOTHER", flush=True)
        file.write_text(text)
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)

    reader = spark.readStream.format("kinmqtt").options(maxFilesPerTrigger=2, rejected="rows")
    query = (
        reader.load(landing)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else -1)
