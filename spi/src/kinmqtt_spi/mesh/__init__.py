"""Links between the nodes of a cluster, and a cluster backend over them: no sockets, no clock, no randomness.

The owner of a backend brings the connections, the clock and the membership.
"""
