"""The outboxes of plugins: names and settings on one side, their sessions on the other."""
