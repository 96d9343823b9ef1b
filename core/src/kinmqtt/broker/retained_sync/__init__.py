"""Retained messages on all nodes of a cluster, where each node has a retain store of its own."""
