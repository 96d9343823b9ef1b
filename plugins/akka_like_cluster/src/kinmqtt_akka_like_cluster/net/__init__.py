"""Connections between brokers: handshake, TLS, seeds."""
