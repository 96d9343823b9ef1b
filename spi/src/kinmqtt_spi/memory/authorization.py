"""Rules from a list, of which the first that fits decides: for tests, and for small setups."""

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
    """One line of the rules.

    In ``filter`` each ``%u`` stands for the client's user name and each ``%c`` for its client id. A client
    whose name is missing, or has a ``/``, ``+`` or ``#`` in it, matches no rule that asks for the name: it
    could otherwise reach topics that are not its own. For the same reason a name that begins with ``$`` is allowed
    nothing by a filter that begins with the name.
    """

    verdict: Verdict = field()
    filter: str
    actions: frozenset[Action] = field(default=frozenset(Action), converter=_actions)
    username: str | None = None
    """Whom the rule is for; ``None`` for everyone."""

    @verdict.validator
    def _decides(self, attribute: object, value: Verdict) -> None:
        if value is Verdict.ABSTAIN:
            raise ValueError("a rule allows or denies; without a rule the plugin abstains")

    def fits(self, request: AuthorizationRequest) -> bool:
        """Whether the rule decides this question.

        For SUBSCRIBE the question is a filter: ALLOW fits if the rule's filter covers all of it, DENY if they
        share any topic, so that subscribing to ``#`` does not go around a rule that denies ``secret/#``.
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
    """A plugin that decides by the first rule that fits, and abstains where none does."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision:
        """Decide what a client does: PUBLISH, SUBSCRIBE or WILL."""
        return self._decide(request)

    @hookimpl
    def authorize_receive(self, request: AuthorizationRequest) -> Decision:
        """Decide what a client is sent: RECEIVE."""
        return self._decide(request)

    def _decide(self, request: AuthorizationRequest) -> Decision:
        for rule in self.rules:
            if rule.fits(request):
                if rule.verdict is Verdict.ALLOW:
                    return ALLOW
                return deny(text=f"a rule denies {request.action.value} to {rule.filter}")
        return ABSTAIN


def _filled_in(filter: str, client: Client) -> str | None:
    """The filter for one client; ``None`` where it asks for a name that the client can't give."""
    for placeholder, name in (("%u", client.username), ("%c", client.client_id)):
        if placeholder in filter and (not name or any(sign in name for sign in "/+#")):
            return None
    # In one pass over the pieces, so that a user named "%c" is not taken for a placeholder.
    by_user = filter.split("%u")
    return (client.username or "").join(piece.replace("%c", client.client_id) for piece in by_user)
