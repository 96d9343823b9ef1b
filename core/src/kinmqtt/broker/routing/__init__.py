"""Routes messages to their subscribers, and retains them."""
