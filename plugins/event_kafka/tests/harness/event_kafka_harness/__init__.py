"""What the tests of the plugin share."""
