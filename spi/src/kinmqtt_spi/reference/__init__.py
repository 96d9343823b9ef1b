"""In-memory reference implementations of every service family, one module each.

The contract tests are tried on them, and small setups use them. They answer synchronously, and forget
everything when the process ends.
"""
