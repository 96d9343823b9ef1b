"""From a message to everybody who subscribed to it."""
