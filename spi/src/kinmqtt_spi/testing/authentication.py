"""The contract of an authenticator: which clients it accepts and refuses, and when it abstains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, Final

import pytest
from attrs import evolve, field, frozen

from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.authentication import Authenticated, ConnectRequest, Continue, ExchangeStep, Identity
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import connect_request
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import Driver, NoAnswer
from kinmqtt_spi.testing.hooks import Hooks
from kinmqtt_spi.values import Decision, Verdict

STEPS: Final = 10
"""How many steps of an exchange the suite takes before it gives up."""

STRANGER: Final = "nobody-of-this-name"
UNUSUAL_NAMES: Final = ("", "\0", "+/#", "%s {0} ${clientid}", "' OR 1=1 --", "*)(uid=*", "\U0001f600", "x" * 65_535)
SEPARATORS: Final = (b":", b"/", b"|", b",", b";", b" ", b"\0", b"\n")
"""By which a name and a password might be told apart in one string."""
UNUSUAL_PASSWORDS: Final = (b"", b"\0", b"\xff\xfe", b"*", b"x" * 65_535)


@frozen(slots=True)
class Exchange:
    """The client side of an enhanced authentication."""

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
    """An authenticator, and the answers that are expected of it."""

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
    """Override the fixture ``authentication``, which returns an :class:`AuthenticationCase`.

    Behaviours without an example in the case are skipped. A plugin that delays an address after wrong passwords needs
    a ``drive`` that advances the time (``TurningDriver(clock, lambda: clock.advance(0.1))``), and a case whose
    clients have different addresses.
    """

    passwords = True
    """Whether it decides by user name and password."""
    knows_every_name = True
    """False where it abstains for names that it does not know, so that another plugin may know them."""
    exact_names = True
    """False where another spelling is the same user: names without case, patterns, or none that is looked at."""
    exchanges = False
    """Whether it takes part in enhanced authentication: give the case ``exchanged`` and ``exchanged_in_vain``."""
    can_fail = False
    """Whether the suite may make what is behind the plugin fail: override :meth:`failing`."""

    @pytest.fixture
    def authentication(self) -> AuthenticationCase:
        """The plugin under test, and its clients."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture authentication")

    def failing(self, case: AuthenticationCase) -> None:
        """Make the plugin's backend fail from now on."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    # Verdicts

    @behaviour("AUTHENTICATION-01")
    def test_authentication_01_the_accepted_come_in(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """An accepted client gets ALLOW."""
        for request in _some(authentication.accepted, "accepted"):
            assert _verdict(_ask(authentication, request, drive)) is Verdict.ALLOW

    @behaviour("AUTHENTICATION-02")
    def test_authentication_02_the_refused_stay_out(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """A refused client gets DENY, with the reason code of a failure."""
        for request in _some(authentication.refused, "refused"):
            _check_refusal(_ask(authentication, request, drive))

    @behaviour("AUTHENTICATION-03")
    def test_authentication_03_it_leaves_others(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """For other clients the plugin abstains, so that another plugin can decide."""
        for request in _some(authentication.foreign, "foreign"):
            assert _verdict(_ask(authentication, request, drive)) is Verdict.ABSTAIN

    @behaviour("AUTHENTICATION-04")
    def test_authentication_04_answers_are_decisions(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """An answer is a ``Decision``, or ``None`` to abstain; never a boolean."""
        for request in _some(_everybody(authentication), "clients"):
            answer = _ask(authentication, request, drive)
            assert answer is None or isinstance(answer, Decision)

    @behaviour("AUTHENTICATION-05")
    def test_authentication_05_an_identity_is_well_formed(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """The identity of an accepted client has valid MQTT names, text attributes and a finite expiry."""
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
        """A known user's password with one byte added, removed or changed, in another case, or empty, is refused."""
        for request in _some(authentication.accepted, "accepted"):
            for password in _near(request):
                _check_refusal(_ask(authentication, evolve(request, password=password), drive))

    @behaviour("AUTHENTICATION-08", needs="knows_every_name")
    def test_authentication_08_nobody_learns_who_is_known(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """An unknown user gets the same answer as a wrong password: the same verdict, reason and text."""
        if not self.passwords:
            pytest.skip("the plugin checks no passwords")
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
        """Neither the given password nor the right one is in an answer."""
        for request, right in _secrets(authentication):
            shown = repr(_ask(authentication, request, drive))
            assert not _told([shown], request.password, right)

    @behaviour("AUTHENTICATION-10", needs="passwords")
    def test_authentication_10_no_log_tells_a_password(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """No password is logged."""
        if authentication.context is None:
            pytest.skip("the case has no context, and so no log")
        log = authentication.context.log
        for request, right in _secrets(authentication):
            _ask(authentication, request, drive)
            assert not _told([*log.texts(), *map(repr, log.lines)], request.password, right)

    @behaviour("AUTHENTICATION-11")
    def test_authentication_11_odd_names_are_met(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Long names and passwords, and special characters, are answered without an error.

        If passwords decide, none of them is accepted.
        """
        request = _some(authentication.accepted, "accepted")[0]
        odd = [evolve(request, username=name) for name in UNUSUAL_NAMES]
        odd += [evolve(request, password=password) for password in UNUSUAL_PASSWORDS]
        odd += [evolve(request, username=name, password=b"\xff") for name in UNUSUAL_NAMES]
        for each in odd:
            verdict = _verdict(_ask(authentication, each, drive))
            assert not (self.passwords and verdict is Verdict.ALLOW), each

    # Over time

    @behaviour("AUTHENTICATION-12")
    def test_authentication_12_the_answer_stays(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """A repeated request gets the same verdict, whatever was refused or accepted in between."""
        declared = _some(_declared(authentication), "clients")
        for order in (declared, declared[::-1], declared):
            for request, verdict in order:
                assert _verdict(_ask(authentication, request, drive)) is verdict
        for request, verdict in declared:
            for other, its in declared:
                assert _verdict(_ask(authentication, request, drive)) is verdict
                assert _verdict(_ask(authentication, other, drive)) is its

    @behaviour("AUTHENTICATION-13")
    def test_authentication_13_each_gets_its_own_answer(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """Of many concurrent requests each gets its own answer, in any order."""
        asked = [each for each in _some(_declared(authentication), "clients") for _ in range(5)]
        hooks = Hooks(authentication.plugin)
        for order in (asked, asked[::-1]):
            answers = [hooks.call("authenticate", request=request) for request, _ in order]
            found = [_verdict(answer) for answer in drive.together(answers)]
            assert found == [verdict for _, verdict in order]
        answers = [hooks.call("authenticate", request=request) for request, _ in asked]
        for answer, (_, verdict) in zip(reversed(answers), reversed(asked), strict=True):
            assert _verdict(drive(answer)) is verdict

    @behaviour("AUTHENTICATION-14", needs="can_fail")
    def test_authentication_14_a_broken_guard_lets_nobody_in(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """While the plugin's backend fails no client is accepted: the plugin raises, or refuses."""
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
        """A client with the method's secret is accepted at the end of the exchange, with a valid identity."""
        for exchange in _some(authentication.exchanged, "exchanged"):
            answer = _run(authentication, exchange, drive)
            assert _verdict(answer) is Verdict.ALLOW
            _check_identity(answer)

    @behaviour("AUTHENTICATION-16", needs="exchanges")
    def test_authentication_16_an_exchange_refuses(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """A client without the secret is refused, with the reason code of a failure."""
        for exchange in _some(authentication.exchanged_in_vain, "exchanged_in_vain"):
            _check_refusal(_run(authentication, exchange, drive))

    @behaviour("AUTHENTICATION-17", needs="exchanges")
    def test_authentication_17_it_abstains_from_methods(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """The plugin abstains from other methods."""
        for exchange in _some(authentication.exchanged, "exchanged"):
            for method in ("", "X-UNKNOWN", f"{exchange.method}-X"):
                step = ExchangeStep(method, exchange.first, None, exchange.request)
                assert _verdict(_step(authentication, step, drive)) is Verdict.ABSTAIN

    @behaviour("AUTHENTICATION-18", needs="exchanges")
    def test_authentication_18_exchanges_do_not_mix(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Concurrent exchanges are independent: each has its own state."""
        wanted = [(exchange, Verdict.ALLOW) for exchange in authentication.exchanged]
        wanted += [(exchange, Verdict.DENY) for exchange in authentication.exchanged_in_vain]
        _some(wanted, "exchanged")
        for order in (wanted * 2, wanted[::-1] * 2):
            talks = [_talk(authentication, exchange) for exchange, _ in order]
            asked = {number: next(talk) for number, talk in enumerate(talks)}
            found: dict[int, Verdict] = {}
            while asked:
                answers = dict(zip(asked, drive.together(list(asked.values())), strict=True))
                asked = {}
                for number, answer in answers.items():
                    try:
                        asked[number] = talks[number].send(answer)
                    except StopIteration as end:
                        found[number] = _verdict(end.value)
            assert [found[number] for number in range(len(order))] == [verdict for _, verdict in order]

    @behaviour("AUTHENTICATION-19", needs="exchanges")
    def test_authentication_19_no_step_opens_alone(self, authentication: AuthenticationCase, drive: Driver) -> None:
        """Missing, empty, malformed or late data in a step accepts no client."""
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
        """An accepted client may authenticate again as the same user (section 4.12.1)."""
        for exchange in _some(authentication.exchanged, "exchanged"):
            first = _run(authentication, exchange, drive)
            name = first.identity.username if isinstance(first, Authenticated) else None
            request = exchange.request if name is None else evolve(exchange.request, username=name)
            again = _run(authentication, evolve(exchange, request=request), drive, reauthentication=True)
            assert _verdict(again) is Verdict.ALLOW

    # After somebody was let in

    @behaviour("AUTHENTICATION-21", needs="passwords")
    def test_authentication_21_no_other_password_is_right_then(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """After a user was accepted, other passwords, and none, are refused as before; the right one is accepted."""
        for request in _some(authentication.accepted, "accepted"):
            for password in [*_near(request), b"certainly wrong", None]:
                assert _verdict(_ask(authentication, request, drive)) is Verdict.ALLOW
                _check_refusal(_ask(authentication, evolve(request, password=password), drive))
            assert _verdict(_ask(authentication, request, drive)) is Verdict.ALLOW

    @behaviour("AUTHENTICATION-22", needs="passwords")
    def test_authentication_22_a_password_is_one_users(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """After a user was accepted, its password accepts no one else: no unknown user, and no other user."""
        for request in _some(authentication.accepted, "accepted"):
            others = [each for each in authentication.accepted if each.password != request.password]
            for other in [evolve(request, username=STRANGER), *others]:
                stolen = evolve(other, password=request.password)
                if not _is_accepted(authentication, stolen):
                    assert _verdict(_ask(authentication, request, drive)) is Verdict.ALLOW
                    assert _verdict(_ask(authentication, stolen, drive)) is not Verdict.ALLOW

    @behaviour("AUTHENTICATION-23", needs="exact_names")
    def test_authentication_23_a_near_name_is_anothers(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """A user's password accepts no client with a similar name, before and after that user was accepted.

        Names in another case, with blanks around, with one character more or less, or with similar characters.
        """
        if not self.passwords:
            pytest.skip("the plugin checks no passwords")
        accepted = _some(authentication.accepted, "accepted")
        for _ in range(2):
            for request in accepted:
                for name in near_names(request.username or ""):
                    near = evolve(request, username=name)
                    if not _is_accepted(authentication, near):
                        assert _verdict(_ask(authentication, near, drive)) is not Verdict.ALLOW, name
            for request in accepted:
                assert _verdict(_ask(authentication, request, drive)) is Verdict.ALLOW

    @behaviour("AUTHENTICATION-24", needs="passwords")
    def test_authentication_24_name_and_password_are_two(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """After a user was accepted, its name and password, split at another place, are refused."""
        for request in _some(authentication.accepted, "accepted"):
            assert _verdict(_ask(authentication, request, drive)) is Verdict.ALLOW
            for name, password in _parted(request):
                other = evolve(request, username=name, password=password)
                if not _is_accepted(authentication, other):
                    assert _verdict(_ask(authentication, other, drive)) is not Verdict.ALLOW, name

    @behaviour("AUTHENTICATION-25", needs="exchanges")
    def test_authentication_25_no_exchange_opens_for_another(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """After an exchange has accepted a client, a client without the secret is refused in another exchange."""
        for exchange in _some(authentication.exchanged, "exchanged"):
            for other in _some(authentication.exchanged_in_vain, "exchanged_in_vain"):
                assert _verdict(_run(authentication, exchange, drive)) is Verdict.ALLOW
                _check_refusal(_run(authentication, other, drive))
                _check_refusal(_run(authentication, evolve(other, request=exchange.request), drive))

    # Names

    @behaviour("AUTHENTICATION-26")
    def test_authentication_26_an_unverified_name_is_dropped(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """A client that is accepted without a verified user name does not get that user name."""
        for request in _some(authentication.accepted, "accepted"):
            for password in (request.password, None, b"certainly wrong"):
                claimed = evolve(request, username=STRANGER, username_verified=False, password=password)
                answer = _ask(authentication, claimed, drive)
                if _verdict(answer) is Verdict.ALLOW:
                    assert _identity(answer).username_of(claimed) != STRANGER

    # Clients that go

    @behaviour("AUTHENTICATION-27")
    def test_authentication_27_who_goes_holds_up_nobody(
        self, authentication: AuthenticationCase, drive: Driver
    ) -> None:
        """A cancelled request ends, and other requests are answered correctly.

        The broker cancels a request when the client's connection is closed.
        """
        hooks = Hooks(authentication.plugin)
        for gone, _ in _some(_declared(authentication), "clients"):
            for _ in range(3):
                drive.abandon(hooks.call("authenticate", request=gone))
            for request, verdict in _declared(authentication):
                assert _verdict(_ask(authentication, request, drive)) is verdict


def near_names(name: str) -> list[str]:
    """Similar names, and another user's name."""
    wide = "".join(chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in name)
    near = [
        *(name.upper(), name.lower(), name.swapcase(), name.capitalize()),
        *(f"{name} ", f" {name}", f"{name}\t", f"{name}\n", f"{name}\0", f"{name}\0x", name.strip()),
        *(f"{name}x", f"x{name}", name[:-1], name[1:], f"{name[:-1]}?", f"{name[:1]}*", f"{name[:-1]}_"),
        *(f"./{name}", f"{name}/", f"{name}@", f"@{name}", f"\\{name}", f'"{name}"', f"{name}\u200b", wide),
        f"{name[:-1]}{name[-1:]}\u0301",
    ]
    return [each for each in dict.fromkeys(near) if each not in ("", name)]


def _some(examples: Sequence[Any], what: str) -> Sequence[Any]:
    if not examples:
        pytest.skip(f"the case has no example of {what}")
    return examples


def _everybody(case: AuthenticationCase) -> list[ConnectRequest]:
    return [*case.accepted, *case.refused, *case.foreign]


def _declared(case: AuthenticationCase) -> list[tuple[ConnectRequest, Verdict]]:
    """All requests, with the verdict that the case declares."""
    return [
        *((request, Verdict.ALLOW) for request in case.accepted),
        *((request, Verdict.DENY) for request in case.refused),
        *((request, Verdict.ABSTAIN) for request in case.foreign),
    ]


def _is_accepted(case: AuthenticationCase, request: ConnectRequest) -> bool:
    """Tell whether the case accepts this name and password, whatever the other fields."""
    return (request.username, request.password) in [(each.username, each.password) for each in case.accepted]


def _ask(case: AuthenticationCase, request: ConnectRequest, drive: Driver) -> Any:
    return drive(Hooks(case.plugin).call("authenticate", request=request))


def _step(case: AuthenticationCase, step: ExchangeStep, drive: Driver) -> Any:
    return drive(Hooks(case.plugin).call("exchange", step=step))


def _talk(case: AuthenticationCase, exchange: Exchange, reauthentication: bool = False) -> Generator[Any, Any, Any]:
    """Yield the plugin's answers, to be awaited and sent back; return the first that is no ``Continue``."""
    data, state = exchange.first, None
    for _ in range(STEPS):
        step = ExchangeStep(exchange.method, data, state, exchange.request, reauthentication)
        answer = yield Hooks(case.plugin).call("exchange", step=step)
        if not isinstance(answer, Continue):
            return answer
        data, state = exchange.next(answer.data), answer.state
    raise AssertionError(f"the exchange by {exchange.method} did not end after {STEPS} steps")


def _run(case: AuthenticationCase, exchange: Exchange, drive: Driver, reauthentication: bool = False) -> Any:
    talk = _talk(case, exchange, reauthentication)
    answer = next(talk)
    while True:
        try:
            answer = talk.send(drive(answer))
        except StopIteration as end:
            return end.value


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


def _identity(answer: Any) -> Identity:
    return answer.identity if isinstance(answer, Authenticated) else Identity()


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
    assert right, "an accepted request must have a password"
    near = [
        right + b"x",
        right + b"\0",
        right[:-1],
        right[1:],
        right[:-1] + bytes([right[-1] ^ 1]),
        right + b"\0x",
        b" " + right,
        right + b" ",
        right + b"\n",
        b"",
    ]
    return [*near, *(other for other in (right.upper(), right.lower(), right.swapcase()) if other != right)]


def _parted(request: ConnectRequest) -> Iterator[tuple[str, bytes]]:
    """The concatenation of name and password, split at other places."""
    name, password = (request.username or "").encode(), request.password or b""
    pairs = [((name + password)[:place], (name + password)[place:]) for place in range(len(name + password) + 1)]
    pairs += [((password + name)[place:], (password + name)[:place]) for place in range(len(name + password) + 1)]
    for separator in SEPARATORS:
        together = name + separator + password
        places = [place for place in range(len(together)) if together[place : place + 1] == separator]
        pairs += [(together[:place], together[place + 1 :]) for place in places]
    for other, rest in pairs:
        if (other, rest) != (name, password):
            with suppress(UnicodeDecodeError):
                yield other.decode(), rest


def _secrets(case: AuthenticationCase) -> Iterator[tuple[ConnectRequest, bytes | None]]:
    """Requests with the right password of their user."""
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
