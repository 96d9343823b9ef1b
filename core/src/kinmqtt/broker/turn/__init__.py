"""One turn of the event loop: what is committed and sent together."""
