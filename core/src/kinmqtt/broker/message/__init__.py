"""Messages on their way through the broker."""
