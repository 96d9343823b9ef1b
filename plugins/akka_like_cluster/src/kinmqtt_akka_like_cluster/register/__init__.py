"""Where brokers have stores of their own: the register of client ids, and sessions that move by it."""
