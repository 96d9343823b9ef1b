"""Authorization by a list of rules: for tests and for small setups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import field, frozen

from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.topics import covers, overlaps
from kinmqtt_spi.values import ABSTAIN, ALLOW, Client, Decision, Verdict, deny


def _actions(actions: Iterable[Action]) -> frozenset[Action]:
    return frozenset(actions)


@frozen(slots=True)
class Rule:
    """One rule.

    In ``filter`` each ``%u`` stands for the client's user name and each ``%c`` for its client id. A rule with a
    placeholder does not match a client whose name is missing or contains ``/``, ``+`` or ``#``: the client could
    reach topics of others. For the same reason a filter that begins with a placeholder allows nothing to a client
    whose name begins with ``$``.
    """

    verdict: Verdict = field()
    filter: str
    actions: frozenset[Action] = field(default=frozenset(Action), converter=_actions)
    username: str | None = None
    """The user that the rule applies to; ``None`` for all."""

    @verdict.validator
    def _decides(self, attribute: object, value: Verdict) -> None:
        if value is Verdict.ABSTAIN:
            raise ValueError("a rule allows or denies; without a rule the plugin abstains")

    def fits(self, request: AuthorizationRequest) -> bool:
        """Tell whether the rule decides this request.

        For SUBSCRIBE the topic is a filter. ALLOW matches if the rule's filter covers it, DENY if they overlap, so
        that a subscription to ``#`` does not bypass a rule that denies ``secret/#``.
        """
        client = request.client
        if request.action not in self.actions or self.username not in (None, client.username):
            return False
        filter = _filled_in(self.filter, client)
        if filter is None:
            return False
        if self.verdict is Verdict.ALLOW and filter.startswith("$") and not self.filter.startswith("$"):
            return False
        if request.action is Action.SUBSCRIBE and self.verdict is Verdict.DENY:
            return overlaps(filter, request.topic)
        return covers(filter, request.topic)


class StaticRules:
    """A plugin that decides by the first matching rule, and abstains if no rule matches."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision:
        """Decide on PUBLISH, SUBSCRIBE and WILL."""
        return self._decide(request)

    @hookimpl
    def authorize_receive(self, request: AuthorizationRequest) -> Decision:
        """Decide on RECEIVE."""
        return self._decide(request)

    def _decide(self, request: AuthorizationRequest) -> Decision:
        for rule in self.rules:
            if rule.fits(request):
                if rule.verdict is Verdict.ALLOW:
                    return ALLOW
                return deny(text=f"a rule denies {request.action.value} to {rule.filter}")
        return ABSTAIN


def _filled_in(filter: str, client: Client) -> str | None:
    """Return the filter for one client; ``None`` if it needs a name that the client does not have."""
    for placeholder, name in (("%u", client.username), ("%c", client.client_id)):
        if placeholder in filter and (not name or any(sign in name for sign in "/+#")):
            return None
    # Split first, so that a user named "%c" is not taken for a placeholder.
    by_user = filter.split("%u")
    return (client.username or "").join(piece.replace("%c", client.client_id) for piece in by_user)
