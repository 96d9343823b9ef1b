"""Turns of the event loop: their writes are committed together, their packets sent together."""
