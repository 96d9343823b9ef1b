"""One client's session: its window, its queue and what it may receive."""
