"""``format("kinmqtt")``: a Python data source of Spark's that reads the landing folder, and publishes rows.

.. code-block:: python

    spark.read.format("kinmqtt").load("/var/lib/kinmqtt/landing")
    spark.readStream.format("kinmqtt").option("maxFilesPerTrigger", 500).load("/var/lib/kinmqtt/landing")
    rows.write.format("kinmqtt").option("host", "127.0.0.1").mode("append").save()

Spark finds it by itself where this package is installed (:mod:`pyspark_kinmqtt`). It needs the extra ``pipeline``.
Its search finds no format at all where another package's has a mistake, or Python starts slowly; with
``spark.dataSource.register(KinmqttSource)`` a session has it in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinmqtt_metrics.source.client_events import events

if TYPE_CHECKING:
    from kinmqtt_metrics.source.format import KinmqttSource

__all__ = ["KinmqttSource", "events"]


def __getattr__(name: str) -> Any:
    # The pipeline imports modules of this package before it can say that Spark is not installed.
    if name == "KinmqttSource":
        from kinmqtt_metrics.source.format import KinmqttSource

        return KinmqttSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
