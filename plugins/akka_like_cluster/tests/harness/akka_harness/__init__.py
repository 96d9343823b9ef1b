"""What the tests of the cluster plugin share."""
