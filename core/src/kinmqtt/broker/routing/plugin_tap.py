"""A tap, as its plugin has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinmqtt.broker.message.filters import checked_filters
from kinmqtt_spi.services.tap import PayloadTest, Tap, TapHandler

if TYPE_CHECKING:
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime


class PluginTap(Tap):
    """See :class:`~kinmqtt_spi.services.tap.Tap`. It is open when it is made."""

    def __init__(
        self,
        runtime: Runtime,
        router: Router,
        plugin: str,
        filters: Sequence[str],
        handler: TapHandler,
        wants: PayloadTest | None,
    ) -> None:
        """Raises ``ValueError`` for an invalid filter, a shared one, and for none."""
        self._router = router
        self._filters = checked_filters(runtime.limits, filters)
        if not self._filters:
            raise ValueError("a tap needs a topic filter")
        self._tap = router.taps.add(runtime.hooks.bind_tap(plugin, handler), self._filters, wants)
        self._changed()

    def close(self) -> None:
        """See :meth:`Tap.close`."""
        if self._tap.is_open:
            self._router.taps.remove(self._tap, self._filters)
            self._changed()

    def _changed(self) -> None:
        for filter in self._filters:
            self._router.fanouts.filter_changed(filter)
