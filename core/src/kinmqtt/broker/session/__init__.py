"""One client's session: inflight window, queue and receive rights."""
