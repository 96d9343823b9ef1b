"""What holds for the tests of every distribution."""

from __future__ import annotations

try:
    from hypothesis import settings
except ImportError:
    pass  # Where only a plugin's own tests run, nothing needs it.
else:
    # How long an example takes is the machine's affair: no test asserts it.
    settings.register_profile("kinmqtt", deadline=None)
    settings.load_profile("kinmqtt")
