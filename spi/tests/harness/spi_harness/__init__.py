"""What the SPI's tests share, and processes for the tests of all distributions."""
