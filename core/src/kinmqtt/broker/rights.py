"""Whether a client may publish, subscribe or leave a will: the broker's own rule, then the authorizers."""

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
    """Answers authorization requests, and reports denials to the log and to plugins."""

    def __init__(self, hooks: Hooks, spaces: TopicSpaces, denials: DenialLogger) -> None:
        self._hooks = hooks
        self.denials = denials
        self.spaces = spaces

    def ask(self, request: AuthorizationRequest) -> Maybe[HookVerdict]:
        """Returns the decision on a request; authorizers can't allow a topic reserved by the broker or a plugin.

        ``by`` is empty where the broker itself decided.
        """
        refusal = self.spaces.refusal(request.action, request.topic)
        return self._hooks.authorize(request) if refusal is None else HookVerdict(refusal, "")

    def report_denial(self, request: AuthorizationRequest, ruling: HookVerdict) -> None:
        """Log a denial and notify plugins of it; do nothing for a request that is allowed."""
        if ruling.decision.allowed:
            return
        self.denials.log(request, ruling)
        if self._hooks.authorization_refused.active:
            self._hooks.authorization_refused(request, ruling.by)
