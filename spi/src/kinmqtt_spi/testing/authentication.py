"""The contract of an authenticator: who comes in, who does not, and of whom it does not speak."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from math import isfinite
from typing import Any, Final

import pytest
from attrs import evolve, field, frozen

from kinmqtt_spi.reference.plugin import BareContext
from kinmqtt_spi.services.authentication import Authenticated, ConnectRequest, Continue, ExchangeStep
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import connect_request
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import Driver, NoAnswer
from kinmqtt_spi.testing.hooks import Hooks
from kinmqtt_spi.values import Decision, Verdict

STEPS: Final = 10
"""How many steps of an exchange the suite takes before it gives up."""

STRANGER: Final = "nobody-of-this-name"
ODD_NAMES: Final = ("", "\0", "+/#", "%s {0} ${clientid}", "' OR 1=1 --", "*)(uid=*", "\U0001f600", "x" * 65_535)
ODD_PASSWORDS: Final = (b"", b"\0", b"\xff\xfe", b"*", b"x" * 65_535)


@frozen(slots=True)
class Exchange:
    """One client's part in an enhanced authentication."""

    method: str
    """The authentication method that it names."""
    first: bytes | None
    """The authentication data of its CONNECT."""
    next: Callable[[bytes | None], bytes | None]
    """What it says to the data of each ``Continue``."""
    request: ConnectRequest = field(factory=connect_request)
    """The rest of its CONNECT."""


@frozen(slots=True)
class AuthenticationCase:
    """An authenticator, and whom it is to answer what."""

    plugin: Any
    """Configured, and started where it must be."""
    accepted: Sequence[ConnectRequest] = ()
    """Whom it lets in; with the suite's ``passwords``, by user name and password."""
    refused: Sequence[ConnectRequest] = ()
    """Whom it refuses."""
    foreign: Sequence[ConnectRequest] = ()
    """Of whom it has nothing to say."""
    exchanged: Sequence[Exchange] = ()
    """Who is let in by enhanced authentication."""
    exchanged_in_vain: Sequence[Exchange] = ()
    """Who is refused there."""
    context: BareContext | None = None
    """What it was configured with, where it was: its log is read."""


class AuthenticatorContract(Contract):
    """Override the fixture ``authentication``, which answers an :class:`AuthenticationCase`.

    What a case has no example of is skipped.
    """

    passwords = True
    """Whether it decides by user name and password."""
    knows_every_name = True
    """False where it abstains for names that it does not know, so that another plugin may know them."""
    exchanges = False
    """Whether it takes part in enhanced authentication: give the case ``exchanged`` and ``exchanged_in_vain``."""
    can_fail = False
    """Whether the suite may make what is behind the plugin fail: override :meth:`failing`."""

    @pytest.fixture
    def authentication(self) -> AuthenticationCase:
        """The plugin under test, and its clients."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture authentication")

    def failing(self, case: AuthenticationCase) -> None:
        """Make whatever is behind the plugin fail from now on."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    # Verdicts

    @behaviour("AUTHENTICATION-01")
    def test_authentication_01_the_accepted_come_in(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Whoever is to be let in is answered ALLOW."""
        for request in _some(authentication.accepted, "accepted"):
            assert _verdict(_ask(authentication, request, drive)) is Verdict.ALLOW

    @behaviour("AUTHENTICATION-02")
    def test_authentication_02_the_refused_stay_out(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Whoever is to be refused is answered DENY, with the reason code of a failure."""
        for request in _some(authentication.refused, "refused"):
            _check_refusal(_ask(authentication, request, drive))

    @behaviour("AUTHENTICATION-03")
    def test_authentication_03_it_leaves_others(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Of clients that are not its own the plugin says nothing, so that another may speak for them."""
        for request in _some(authentication.foreign, "foreign"):
            assert _verdict(_ask(authentication, request, drive)) is Verdict.ABSTAIN

    @behaviour("AUTHENTICATION-04")
    def test_authentication_04_answers_are_decisions(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """An answer is a ``Decision``, or ``None`` to abstain; never a bare boolean."""
        for request in _some(_everybody(authentication), "clients"):
            answer = _ask(authentication, request, drive)
            assert answer is None or isinstance(answer, Decision)

    @behaviour("AUTHENTICATION-05")
    def test_authentication_05_an_identity_is_well_formed(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """The identity of who is let in has names that MQTT can carry, text attributes and a finite expiry."""
        for request in _some(authentication.accepted, "accepted"):
            _check_identity(_ask(authentication, request, drive))

    # Passwords

    @behaviour("AUTHENTICATION-06", needs="passwords")
    def test_authentication_06_no_password_is_no_way_in(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """A known user without a password is refused."""
        for request in _some(authentication.accepted, "accepted"):
            _check_refusal(_ask(authentication, evolve(request, password=None), drive))

    @behaviour("AUTHENTICATION-07", needs="passwords")
    def test_authentication_07_nearly_right_is_wrong(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """A known user's password with a byte more, less or changed, in another case, or empty, is refused."""
        for request in _some(authentication.accepted, "accepted"):
            for password in _near(request):
                _check_refusal(_ask(authentication, evolve(request, password=password), drive))

    @behaviour("AUTHENTICATION-08", needs="knows_every_name")
    def test_authentication_08_nobody_learns_who_is_known(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """An unknown user is answered as one whose password is wrong: the same verdict, reason and text."""
        if not self.passwords:
            pytest.skip("the plugin looks at no passwords")
        for request in _some(authentication.accepted, "accepted"):
            wrong = _ask(authentication, evolve(request, password=b"certainly wrong"), drive)
            unknown = _ask(authentication, evolve(request, username=STRANGER, password=b"certainly wrong"), drive)

            assert isinstance(wrong, Decision)
            assert isinstance(unknown, Decision)
            assert (unknown.verdict, unknown.reason, unknown.text) == (wrong.verdict, wrong.reason, wrong.text)

    @behaviour("AUTHENTICATION-09", needs="passwords")
    def test_authentication_09_no_answer_tells_a_password(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """Neither the password of who asks nor the right one is in an answer."""
        for request, right in _secrets(authentication):
            shown = repr(_ask(authentication, request, drive))
            assert not _told([shown], request.password, right)

    @behaviour("AUTHENTICATION-10", needs="passwords")
    def test_authentication_10_no_log_tells_a_password(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """No password goes into the log."""
        if authentication.context is None:
            pytest.skip("the plugin was given no context, and has no log")
        log = authentication.context.log
        for request, right in _secrets(authentication):
            _ask(authentication, request, drive)
            assert not _told([*log.texts(), *map(repr, log.lines)], request.password, right)

    @behaviour("AUTHENTICATION-11")
    def test_authentication_11_odd_names_are_met(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Long names and passwords, and signs that mean something elsewhere, are answered without an error.

        Where passwords decide, none of them opens the door.
        """
        request = _some(authentication.accepted, "accepted")[0]
        odd = [evolve(request, username=name) for name in ODD_NAMES]
        odd += [evolve(request, password=password) for password in ODD_PASSWORDS]
        odd += [evolve(request, username=name, password=b"\xff") for name in ODD_NAMES]
        for each in odd:
            verdict = _verdict(_ask(authentication, each, drive))
            assert not (self.passwords and verdict is Verdict.ALLOW), each

    # Over time

    @behaviour("AUTHENTICATION-12")
    def test_authentication_12_the_answer_stays(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Who asks again is answered the same, whoever was refused or let in between."""
        everybody = _some(_everybody(authentication), "clients")
        first = [_verdict(_ask(authentication, request, drive)) for request in everybody]
        for _ in range(3):
            assert [_verdict(_ask(authentication, request, drive)) for request in everybody] == first

    @behaviour("AUTHENTICATION-13")
    def test_authentication_13_each_gets_its_own_answer(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """Of many that are asked for before the first is answered each gets its own answer, in any order."""
        everybody = _some(_everybody(authentication), "clients")
        alone = [_verdict(_ask(authentication, request, drive)) for request in everybody]
        hooks = Hooks(authentication.plugin)
        answers = [hooks.call("authenticate", request=request) for request in everybody for _ in range(5)]
        found = [_verdict(drive(answer)) for answer in reversed(answers)]

        assert found == [verdict for verdict in reversed(alone) for _ in range(5)]

    @behaviour("AUTHENTICATION-14", needs="can_fail")
    def test_authentication_14_a_broken_guard_lets_nobody_in(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """While what is behind the plugin fails nobody is let in: it raises, or refuses."""
        self.failing(authentication)

        for request in [*authentication.accepted, *authentication.refused]:
            try:
                answer = _ask(authentication, request, drive)
            except NoAnswer:
                raise
            except Exception:
                continue  # Counts as DENY.
            _check_refusal(answer)

    # Enhanced authentication

    @behaviour("AUTHENTICATION-15", needs="exchanges")
    def test_authentication_15_an_exchange_lets_in(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Who knows the method's secret is let in at the end of the exchange, with a well-formed identity."""
        for exchange in _some(authentication.exchanged, "exchanged"):
            answer = _run(authentication, exchange, drive)
            assert _verdict(answer) is Verdict.ALLOW
            _check_identity(answer)

    @behaviour("AUTHENTICATION-16", needs="exchanges")
    def test_authentication_16_an_exchange_refuses(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Who does not know the secret is refused, with the reason code of a failure."""
        for exchange in _some(authentication.exchanged_in_vain, "exchanged_in_vain"):
            _check_refusal(_run(authentication, exchange, drive))

    @behaviour("AUTHENTICATION-17", needs="exchanges")
    def test_authentication_17_it_abstains_from_methods(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """From methods that are not its own the plugin abstains."""
        for exchange in _some(authentication.exchanged, "exchanged"):
            for method in ("", "X-UNKNOWN", f"{exchange.method}-X"):
                step = ExchangeStep(method, exchange.first, None, exchange.request)
                assert _verdict(_step(authentication, step, drive)) is Verdict.ABSTAIN

    @behaviour("AUTHENTICATION-18", needs="exchanges")
    def test_authentication_18_exchanges_do_not_mix(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Exchanges that go on at one time do not disturb each other: what one needs is in its own state."""
        wanted = [*authentication.exchanged, *authentication.exchanged_in_vain, *authentication.exchanged]
        expected = [_verdict(_run(authentication, exchange, drive)) for exchange in _some(wanted, "exchanged")]
        running = [_steps(authentication, exchange, drive) for exchange in wanted]
        found: dict[int, object] = {}
        while len(found) < len(running):
            for number, answers in enumerate(running):
                if number not in found:
                    answer = next(answers)
                    if not isinstance(answer, Continue):
                        found[number] = _verdict(answer)

        assert [found[number] for number in range(len(running))] == expected

    @behaviour("AUTHENTICATION-19", needs="exchanges")
    def test_authentication_19_no_step_opens_alone(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Missing, empty, broken or late data in a step lets nobody in."""
        for exchange in _some(authentication.exchanged, "exchanged"):
            said: list[bytes | None] = [exchange.first]
            _run(authentication, evolve(exchange, next=_noting(said, exchange)), drive)
            odd: list[bytes | None] = [None, b"", b"\0", b"\xff" * 1000]
            odd += [data[:-1] for data in said if data] + said[1:]
            for data in odd:
                step = ExchangeStep(exchange.method, data, None, exchange.request)
                answer = _step(authentication, step, drive)
                assert isinstance(answer, Continue) or _verdict(answer) is not Verdict.ALLOW
            for data in odd[:4]:
                vain = evolve(exchange, next=lambda _, data=data: data)
                if said[1:]:
                    assert _verdict(_run(authentication, vain, drive)) is not Verdict.ALLOW

    @behaviour("AUTHENTICATION-20", needs="exchanges")
    def test_authentication_20_clients_may_come_again(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """A client that is in may authenticate again as who it is (section 4.12.1)."""
        for exchange in _some(authentication.exchanged, "exchanged"):
            first = _run(authentication, exchange, drive)
            name = first.identity.username if isinstance(first, Authenticated) else None
            request = exchange.request if name is None else evolve(exchange.request, username=name)
            again = _run(authentication, evolve(exchange, request=request), drive, reauthentication=True)
            assert _verdict(again) is Verdict.ALLOW


def _some(examples: Sequence[Any], what: str) -> Sequence[Any]:
    if not examples:
        pytest.skip(f"the case has no example of {what}")
    return examples


def _everybody(case: AuthenticationCase) -> list[ConnectRequest]:
    return [*case.accepted, *case.refused, *case.foreign]


def _ask(case: AuthenticationCase, request: ConnectRequest, drive: Driver) -> Any:
    return drive(Hooks(case.plugin).call("authenticate", request=request))


def _step(case: AuthenticationCase, step: ExchangeStep, drive: Driver) -> Any:
    return drive(Hooks(case.plugin).call("exchange", step=step))


def _steps(
    case: AuthenticationCase, exchange: Exchange, drive: Driver, reauthentication: bool = False
) -> Iterator[Any]:
    """The plugin's answers, the last of which is no ``Continue``."""
    data, state = exchange.first, None
    for _ in range(STEPS):
        step = ExchangeStep(exchange.method, data, state, exchange.request, reauthentication)
        answer = _step(case, step, drive)
        yield answer
        if not isinstance(answer, Continue):
            return
        data, state = exchange.next(answer.data), answer.state
    raise AssertionError(f"the exchange by {exchange.method} had no end after {STEPS} steps")


def _run(case: AuthenticationCase, exchange: Exchange, drive: Driver, reauthentication: bool = False) -> Any:
    *_, last = _steps(case, exchange, drive, reauthentication)
    return last


def _noting(said: list[bytes | None], exchange: Exchange) -> Callable[[bytes | None], bytes | None]:
    def say(data: bytes | None) -> bytes | None:
        said.append(exchange.next(data))
        return said[-1]

    return say


def _verdict(answer: Any) -> Verdict:
    assert not isinstance(answer, Awaitable)
    if answer is None:
        return Verdict.ABSTAIN
    verdict: Verdict = answer.verdict
    return verdict


def _check_refusal(answer: Any) -> None:
    assert _verdict(answer) is Verdict.DENY
    assert answer.reason >= 0x80


def _check_identity(answer: Any) -> None:
    if not isinstance(answer, Authenticated):
        return
    identity = answer.identity
    for name in (identity.username, identity.client_id):
        assert name is None or ("\0" not in name and len(name.encode()) <= 65_535)
    assert identity.client_id != ""
    assert all(isinstance(each, str) for pair in identity.attributes.items() for each in pair)
    assert identity.expires_at is None or isfinite(identity.expires_at)


def _near(request: ConnectRequest) -> list[bytes]:
    right = request.password
    assert right, "who is accepted by a password has one"
    near = [
        right + b"x",
        right + b"\0",
        right[:-1],
        right[1:],
        right[:-1] + bytes([right[-1] ^ 1]),
        b" " + right,
        b"",
    ]
    return [*near, *(other for other in (right.upper(), right.lower(), right.swapcase()) if other != right)]


def _secrets(case: AuthenticationCase) -> Iterator[tuple[ConnectRequest, bytes | None]]:
    """Requests, each with the right password of its user."""
    for request in [*case.accepted, *case.foreign]:
        yield request, None
    for request in case.refused:
        # A case's wrong password may be a word that stands in many an answer.
        yield request if request.password is None else evolve(request, password=b"certainly wrong"), None
    for request in case.accepted:
        yield evolve(request, password=b"certainly wrong"), request.password
        yield evolve(request, username=STRANGER, password=b"certainly wrong"), request.password


def _told(texts: list[str], *passwords: bytes | None) -> bool:
    secrets = [password.decode("latin-1") for password in passwords if password is not None and len(password) > 3]
    return any(secret in text for secret in secrets for text in texts)
