"""What the tests of the rules plugin share."""
