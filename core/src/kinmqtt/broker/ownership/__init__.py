"""Ownership of sessions: claiming, leaving, ending, expiry, redistribution and recovery."""
