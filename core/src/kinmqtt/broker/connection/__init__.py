"""One network connection: reading, writing and closing."""
