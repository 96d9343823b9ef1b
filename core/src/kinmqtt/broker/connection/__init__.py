"""One network connection: reading, writing and its end."""
