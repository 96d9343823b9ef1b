"""What decides: no clock, no randomness, no sockets. Times are handed in, effects are returned."""
