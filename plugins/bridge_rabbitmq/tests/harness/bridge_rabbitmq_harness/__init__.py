"""What the tests of bridge_rabbitmq share: sinks and sources over a real RabbitMQ, used as the broker does."""
