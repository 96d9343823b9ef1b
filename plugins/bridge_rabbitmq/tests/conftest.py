"""Fixtures that tests of the plugin share with others."""

from spi_harness.certificates import folder, right, wrong

__all__ = ["folder", "right", "wrong"]
