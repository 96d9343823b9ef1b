"""Subscribes clients automatically, by templates in the settings."""

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
    """Raise ``ValueError`` for a filter that no client could subscribe to."""
    try:
        group, _ = split_shared(_PLACEHOLDER.sub("x", filter))
    except RemoteError as error:
        raise ValueError(f"{filter!r} is not a topic filter: {error.text}") from None
    if group is not None and instance.no_local:
        raise ValueError(f"no_local is not allowed: {filter!r} is a shared subscription")


@frozen(slots=True)
class TemplateSettings:
    """A subscription for each client whose values complete the template."""

    filter: str = setting(
        help="the topic filter, $share/group/ in front if it is shared; ${clientid} and ${username} are replaced",
        validator=_check_filter,
    )
    qos: int = setting(0, help="the maximum QoS", minimum=0, maximum=2)
    no_local: bool = setting(False, help="do not deliver the client's own messages")
    retain_as_published: bool = setting(False, help="keep the RETAIN flag of the published message")
    retain_handling: int = setting(
        0,
        help="retained messages: 0 sends them at each connect, 1 only for a new subscription, 2 never",
        minimum=0,
        maximum=2,
    )


@frozen(slots=True)
class AutoSubscriptionsSettings:
    """``[plugins.auto_subscriptions]``."""

    subscriptions: tuple[TemplateSettings, ...] = setting((), help="the subscriptions of every client")


class AutoSubscriptions:
    """Implements ``initial_subscriptions`` from the settings."""

    def __init__(self) -> None:
        self._templates: tuple[TemplateSettings, ...] = ()

    @hookimpl
    def settings_class(self) -> type[AutoSubscriptionsSettings]:
        """Return the class of the settings."""
        return AutoSubscriptionsSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Read the templates."""
        self._templates = context.settings.subscriptions

    @hookimpl
    def reload(self, settings: AutoSubscriptionsSettings) -> Sequence[str]:
        """Use new templates for clients that connect from now on."""
        self._templates = settings.subscriptions
        return ()

    @hookimpl
    def initial_subscriptions(self, client: Client) -> Sequence[Subscription]:
        """Return the subscriptions of this client, from all templates that its values complete."""
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
    """Yield share group and filter, if the client has all values of the template."""
    group = None
    if template.startswith(_SHARED):
        # The group is split off first, so that a client's name can't add one.
        group_template, _, template = template[len(_SHARED) :].partition("/")
        group = fill_in(group_template, client, begins=False)
        if group is None:
            return
    filter = fill_in(template, client)
    if filter is not None:
        yield group, filter
