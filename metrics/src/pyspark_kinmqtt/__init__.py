"""PySpark imports every module ``pyspark_*`` and registers its ``DefaultSource``: ``format("kinmqtt")``."""

from kinmqtt_metrics.source import KinmqttSource as DefaultSource

__all__ = ["DefaultSource"]
