"""Refuses settings that promise more than the cluster backend and the stores give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.services.cluster import ClusterBackend, Guarantee

if TYPE_CHECKING:
    from kinmqtt.broker.turn.batch import Stores

NO_LOSS: Final = "no_loss"
SHARED_STORES: Final = "shared_stores"

_PARTS: Final[Mapping[str, Sequence[str]]] = {NO_LOSS: ("single_owner", "acknowledged_delivery", SHARED_STORES)}


def check_promises(
    required: Sequence[str], backend: ClusterBackend, stores: Stores, providers: Mapping[str, str]
) -> None:
    """Raise :class:`AssemblyError` that names all promises of ``[broker] require`` that cannot be kept.

    A backend may need stores that all nodes share, whatever the settings require, or take both: but not stores of
    which some are shared, as what one node has would not fit what another one has. ``providers`` names the plugin of
    each family.
    """
    if backend.needs_shared_stores and (lacking := _lacking(SHARED_STORES, backend, stores, providers)):
        raise AssemblyError(
            f"the cluster backend of plugin {providers['cluster']!r} needs stores that all brokers share, but "
            f"{lacking}: set session, queue and retain in [services] to a plugin that shares them, as redis_session"
        )
    if backend.with_shared_stores and any(stores.shared) and not stores.are_shared:
        raise AssemblyError(
            f"{_lacking(SHARED_STORES, backend, stores, providers)}, and others are shared: set session, queue and "
            "retain in [services] to one plugin"
        )
    broken = [
        f"[broker] require: {promise if part == promise else f'{promise} needs {part}'}, but {lacking}"
        for promise in required
        for part in _PARTS.get(promise, (promise,))
        if (lacking := _lacking(part, backend, stores, providers))
    ]
    if broken:
        raise AssemblyError("\n".join(broken))


def _lacking(part: str, backend: ClusterBackend, stores: Stores, providers: Mapping[str, str]) -> str:
    """Return who does not keep a promise; an empty text if it is kept."""
    if part == SHARED_STORES:
        for family, is_shared in zip(("session", "queue", "retain"), stores.shared, strict=True):
            if not is_shared:
                return f"the {family} store of plugin {providers[family]!r} is this node's own"
        return ""
    guarantee = Guarantee[part.upper()]
    who = f"the cluster backend of plugin {providers['cluster']!r}"
    if guarantee in backend.with_shared_stores and (lacking := _lacking(SHARED_STORES, backend, stores, providers)):
        return f"{who} promises it only with shared stores, and {lacking}"
    if guarantee not in backend.guarantees:
        return f"{who} does not promise it"
    return ""
