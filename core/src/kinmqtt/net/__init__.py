"""The network: the one part of the broker that knows sockets."""
