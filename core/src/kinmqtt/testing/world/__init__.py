"""A cluster in one process: whole brokers, their links, stores and clients on one virtual clock, from one seed.

    python -m kinmqtt.testing.world --seeds 0:150

A run is decided by its seed. Steps of a plan break connections, stop nodes, slow the stores and move clients; then
everything is mended, and the promises of a cluster are checked. A plan that breaks one is shortened.
"""
