"""What the tests of bridge_kafka share: sinks and sources over a real Kafka, used as the broker does."""
