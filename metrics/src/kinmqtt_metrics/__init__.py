"""The data pipeline of kinmqtt: a sink for metrics and events in the broker, and what Spark makes of them.

The broker imports this package and nothing of Spark; what needs Spark is imported where it is used.
"""
