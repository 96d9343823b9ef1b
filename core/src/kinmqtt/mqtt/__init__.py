"""MQTT without I/O: packets to bytes and back, and the state machines of connections and sessions.

Nothing in this package opens a socket, reads a clock or waits.
"""
