"""Plugins: how they are found, chosen and called."""
