"""The explanation as text: who answered what, and the decision."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, field, frozen

from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict
from kinmqtt_spi.values import Decision, Verdict


@frozen(slots=True)
class Vote:
    """The answer of one plugin."""

    hook: str
    plugin: str
    answer: str
    took_ms: float
    decides: bool = False


@frozen(slots=True)
class Part:
    """One part of the explanation: a question, the answers of plugins, and the decision."""

    question: str
    votes: tuple[Vote, ...]
    decision: Decision
    by: str
    notes: tuple[str, ...] = field(default=())
    """Further remarks."""

    def lines(self) -> list[str]:
        """Returns the part as lines of text."""
        lines = [self.question]
        widths = [max((len(getattr(vote, name)) for vote in self.votes), default=0) for name in ("hook", "plugin")]
        answers = max((len(vote.answer) for vote in self.votes), default=0)
        lines += [
            f"  {vote.hook:<{widths[0]}}  {vote.plugin:<{widths[1]}}  {vote.answer:<{answers}}  "
            f"{vote.took_ms:7.2f} ms{'  decides' if vote.decides else ''}"
            for vote in self.votes
        ]
        if not self.votes:
            lines.append("  no plugin is asked")
        lines += [f"  ({note})" for note in self.notes]
        lines.append(f"  => {described(self.decision)} ({self.by or 'no plugin decides'})")
        return lines


def described(answer: Decision | None) -> str:
    """Returns a decision in words."""
    if answer is None or answer.verdict is Verdict.ABSTAIN:
        return "abstains"
    if answer.allowed:
        return "ALLOW"
    return f"DENY 0x{answer.reason:02X} {answer.reason.name}{f': {answer.text}' if answer.text else ''}"


def limit_described(answer: LimitDecision) -> str:
    """Returns a limiter's decision in words."""
    text = answer.verdict.name
    if answer.verdict is LimitVerdict.DELAY:
        text += f" {answer.delay_s:g} s"
    elif answer.verdict is not LimitVerdict.ALLOW:
        text += f" 0x{answer.reason:02X} {answer.reason.name}"
    return f"{text}{f': rule {answer.rule}' if answer.rule else ''}"


def deciding(votes: Sequence[Vote], by: str) -> tuple[Vote, ...]:
    """Returns the votes, with the deciding one of plugin ``by`` marked; of several, one that refuses."""
    ours = [vote for vote in votes if vote.plugin == by and vote.answer != "abstains"]
    refusing = [vote for vote in ours if not vote.answer.startswith("ALLOW")]
    chosen = (refusing or ours)[:1]
    return tuple(evolve(vote, decides=True) if vote in chosen else vote for vote in votes)
