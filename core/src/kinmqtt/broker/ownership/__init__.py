"""Who owns a session, and what happens when one is claimed, left, ended, expired or recovered."""
