"""Messages in the broker: publications and their deliveries."""
