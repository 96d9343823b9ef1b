"""What the broker runs sinks and sources with: batches, lanes, retries, the circuit breaker and parking.

It is free of Twisted and of the core: the clock, the driver of awaitables, the random numbers and the log are handed
in. :class:`~kinmqtt_spi.bridging.runner.SinkRunner` runs a sink, and
:class:`~kinmqtt_spi.bridging.sources.SourceRunner` a source.
"""
