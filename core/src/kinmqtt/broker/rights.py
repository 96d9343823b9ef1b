"""Checks whether a client may publish, subscribe or leave a will: the topic spaces first, then the authorizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt_spi.services.authorization import AuthorizationRequest
from kinmqtt_spi.values import Maybe

if TYPE_CHECKING:
    from kinmqtt.broker.topic_spaces import TopicSpaces
    from kinmqtt.hooks.denial_log import DenialLogger
    from kinmqtt.hooks.registry import Hooks


class Rights:
    """The rights of clients to publish, subscribe and leave wills."""

    def __init__(self, hooks: Hooks, spaces: TopicSpaces, denials: DenialLogger) -> None:
        self._hooks = hooks
        self.denials = denials
        self.spaces = spaces

    def ask(self, request: AuthorizationRequest) -> Maybe[HookVerdict]:
        """Return the verdict on a request; authorizers can't allow a topic that is reserved by the topic spaces.

        Its ``by`` is empty if the broker itself has answered.
        """
        refusal = self.spaces.refusal(request.action, request.topic)
        return self._hooks.authorize(request) if refusal is None else HookVerdict(refusal, "")

    def report_denial(self, request: AuthorizationRequest, ruling: HookVerdict) -> None:
        """Log a denial and notify plugins of it; does nothing for other verdicts."""
        if ruling.decision.allowed:
            return
        self.denials.log(request, ruling)
        if self._hooks.authorization_refused.active:
            self._hooks.authorization_refused(request, ruling.by)
