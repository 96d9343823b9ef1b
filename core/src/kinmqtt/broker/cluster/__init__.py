"""The broker's end of a cluster: what other nodes send and ask, and what follows when they come and go."""
