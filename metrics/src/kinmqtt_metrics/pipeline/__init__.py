"""From the landing folder to tables: one query of Structured Streaming, and what it keeps to be exact.

A batch of the query is a step: tasks stage its records once, as they are and added up by window (:mod:`.staging`);
they are checked, Spark puts the sums to the windows that are open, and what is due for the tables is staged too. One
rename makes all of it count (:mod:`.commits`); then files are moved to where readers look. A step that was made is
never made again, whatever is killed in between.

Watermarks windows is ours, and not Spark's watermark with its state: a broker behind the others loses nothing, late
records are counted exactly, records and windows come of one reading of the same segments, and what a batch made can
be told by looking at a folder. Spark is imported by :mod:`kinmqtt_metrics.spark`, :mod:`.aggregate` and what
uses them.
"""
