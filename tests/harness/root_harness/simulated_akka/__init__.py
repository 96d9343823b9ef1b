"""Simulated clusters whose nodes know each other by the plugin akka_like_cluster: all of it, but for the sockets.

    python -m root_harness.simulated_akka --seeds 0:150

The world, its faults and its promises are those of :mod:`kinmqtt.testing.world`. Nobody tells a node who is gone.
"""
