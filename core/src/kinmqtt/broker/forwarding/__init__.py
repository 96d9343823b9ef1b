"""Messages for subscribers of other nodes: who wants them, and what is sent to each node."""
