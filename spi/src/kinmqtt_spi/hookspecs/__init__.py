"""The hooks of the SPI, one module for each service family and for what belongs to none.

A plugin implements a hook with a function of the same name, marked ``@hookimpl``; it takes the arguments it wants.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from kinmqtt_spi.hookspecs import (
    authentication,
    authorization,
    bridge,
    cluster,
    event,
    limiter,
    message,
    metric,
    plugin,
    queue,
    retain,
    session,
    subscription,
)

HOOKSPEC_MODULES: Final[tuple[ModuleType, ...]] = (
    plugin,
    authentication,
    authorization,
    subscription,
    message,
    queue,
    retain,
    session,
    event,
    cluster,
    metric,
    limiter,
    bridge,
)
