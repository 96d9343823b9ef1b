"""MQTT without input and output: bytes ⇄ packets, and the state machines that packets drive.

Nothing in this package opens a socket, reads a clock or waits. Bytes and packets go in, packets and bytes
come out.
"""
