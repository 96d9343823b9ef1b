"""Handlers of the packets that clients send."""
