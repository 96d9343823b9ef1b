"""The versions of the protocol between brokers that this release speaks.

A release that changes the protocol raises the highest one, and still speaks the one of the release before: so brokers
are updated one after the other. Two brokers use the highest version that both speak.
"""

from __future__ import annotations

from typing import Final

LOWEST_VERSION: Final = 1
HIGHEST_VERSION: Final = 1
