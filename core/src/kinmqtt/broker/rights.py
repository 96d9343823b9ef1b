"""Whether a client may publish, subscribe or leave a will: the broker's own rule, then the authorizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.hooks.denial_log import DENIALS
from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt_spi.services.authorization import AuthorizationRequest
from kinmqtt_spi.values import Maybe

if TYPE_CHECKING:
    from kinmqtt.broker.topic_spaces import TopicSpaces
    from kinmqtt.hooks.registry import Hooks


class Rights:
    """Asked by whoever takes something from a client, or for it."""

    def __init__(self, hooks: Hooks, spaces: TopicSpaces) -> None:
        self._hooks = hooks
        self.spaces = spaces

    def ask(self, request: AuthorizationRequest) -> Maybe[HookVerdict]:
        """The answer to a question; no authorizer opens a topic that the broker or a plugin has for itself.

        ``by`` is empty where the broker itself has answered.
        """
        refusal = self.spaces.refusal(request.action, request.topic)
        return self._hooks.authorize(request) if refusal is None else HookVerdict(refusal, "")

    def report_denial(self, request: AuthorizationRequest, ruling: HookVerdict) -> None:
        """Have the log and the plugins hear of an answer, if it is a denial."""
        if ruling.decision.allowed:
            return
        DENIALS.tell(request, ruling)
        if self._hooks.authorization_refused.active:
            self._hooks.authorization_refused(request, ruling.by)
