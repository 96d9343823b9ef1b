"""What the core's tests share: brokers in memory and in processes, clients, doubles and packets."""
