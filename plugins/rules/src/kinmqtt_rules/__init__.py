"""Rules in SQL over messages and client events."""
