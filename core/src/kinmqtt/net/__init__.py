"""The network: the only package of the broker that uses sockets."""
