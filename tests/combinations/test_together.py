"""The plugins that are installed here, found by their entry points and put together in one broker."""

from __future__ import annotations


