"""In-memory implementations of every service family, one module each.

The contract suites run against them, the built-in plugins use them, and a plugin may extend them. They answer
synchronously and lose everything when the process ends.
"""
