"""What the tests of the HTTP bridge share."""
