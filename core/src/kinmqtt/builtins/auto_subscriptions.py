"""Subscriptions that clients have without asking, by templates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.topics import split_shared
from kinmqtt_spi import Subscription, hookimpl
from kinmqtt_spi.settings import setting
from kinmqtt_spi.templates import fill_in

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.values import Client

_PLACEHOLDER: Final = re.compile(r"\$\{\w+\}")
_SHARED: Final = "$share/"


def _check_filter(instance: TemplateSettings, attribute: Any, filter: str) -> None:
    """Refuse a filter that no client could subscribe to."""
    try:
        group, _ = split_shared(_PLACEHOLDER.sub("x", filter))
    except RemoteError as error:
        raise ValueError(f"{filter!r} is no topic filter: {error.text}") from None
    if group is not None and instance.no_local:
        raise ValueError(f"no_local can't be: {filter!r} is shared, and MQTT has no such subscription")


@frozen(slots=True)
class TemplateSettings:
    """One subscription for everybody it can be filled in for."""

    filter: str = setting(
        help="the topic filter, $share/group/ in front where it is shared; ${clientid} and ${username} are filled in",
        validator=_check_filter,
    )
    qos: int = setting(0, help="the maximum QoS", minimum=0, maximum=2)
    no_local: bool = setting(False, help="not the client's own messages")
    retain_as_published: bool = setting(False, help="keep the RETAIN flag as it was published")
    retain_handling: int = setting(
        0, help="retained messages: 0 at each connect, 1 when it is new, 2 never", minimum=0, maximum=2
    )


@frozen(slots=True)
class AutoSubscriptionsSettings:
    """``[plugins.auto_subscriptions]``."""

    subscriptions: tuple[TemplateSettings, ...] = setting((), help="what every client is subscribed to")


class AutoSubscriptions:
    """Answers ``initial_subscriptions`` from the settings."""

    def __init__(self) -> None:
        self._templates: tuple[TemplateSettings, ...] = ()

    @hookimpl
    def settings_class(self) -> type[AutoSubscriptionsSettings]:
        """The templates."""
        return AutoSubscriptionsSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the templates."""
        self._templates = context.settings.subscriptions

    @hookimpl
    def reload(self, settings: AutoSubscriptionsSettings) -> Sequence[str]:
        """Take new templates; they hold for whoever connects from now on."""
        self._templates = settings.subscriptions
        return ()

    @hookimpl
    def initial_subscriptions(self, client: Client) -> Sequence[Subscription]:
        """The templates that can be filled in for this client."""
        return [
            Subscription(
                filter,
                template.qos,
                group,
                template.no_local,
                template.retain_as_published,
                template.retain_handling,
            )
            for template in self._templates
            for group, filter in _filled_in(template.filter, client)
        ]


def _filled_in(template: str, client: Client) -> Iterator[tuple[str | None, str]]:
    """The share group and the filter, where the template can be filled in for a client."""
    group = None
    if template.startswith(_SHARED):
        # Apart, so that the client's name does not begin what it is subscribed to either.
        group_template, _, template = template[len(_SHARED) :].partition("/")
        group = fill_in(group_template, client, begins=False)
        if group is None:
            return
    filter = fill_in(template, client)
    if filter is not None:
        yield group, filter
