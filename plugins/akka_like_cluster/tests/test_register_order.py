"""The register of one member, which learns claims from the other members in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.pure.register import MAX_CLAIMS_OF_ID, Effect, Elsewhere, Granted, Outdated, Register
from kinmqtt_akka_like_cluster.pure.registrars import registrar_of

OWN, CLIENT = 1, "client"


def granted(effects: list[Effect]) -> list[tuple[int, int]]:
    """Return uid and number of the claims that may begin."""
    return [(each.uid, each.number) for each in effects if isinstance(each, Granted)]


@given(data=st.data(), waiting=st.integers(1, 4))
def test_a_claim_under_way_stays_the_only_one_in_whatever_order_claims_are_read(
    data: st.DataObject, waiting: int
) -> None:
    """A member that begins to keep a client id lets nobody begin while a claim of before is under way."""
    first, *others = claims = [(uid, 100 + uid) for uid in range(2, 3 + waiting)]
    register = Register(OWN)
    # With itself alone in the view, the member keeps all client ids.
    begun = granted(register.change((OWN,), {OWN, *(uid for uid, _ in claims)}))
    events = [("read", claim) for claim in [(OWN, 0), *claims]] + [("locate", claim) for claim in others]

    for kind, (uid, number) in data.draw(st.permutations(events)):
        if kind == "locate":
            begun += granted(register.locate(uid, number, CLIENT))
            continue
        pairs = [] if uid == OWN else [(CLIENT, number)]
        begun += granted(register.read(uid, register.round, [], pairs))
        begun += granted(register.has_read(uid, register.round))

    assert begun == []
    assert register.claims == len(claims)

    current = first
    for _ in others:
        (following,) = granted(register.end(*current, CLIENT))
        begun.append(following)
        current = following

    assert sorted(begun) == others
    assert register.end(*current, CLIENT) == []
    assert register.claims == 0


def test_a_copy_that_a_claim_knew_nothing_of_is_outdated() -> None:
    """A claim that another member granted moved no session from here: the older copy here is to be handed off."""
    register = Register(OWN)
    register.change((OWN,), {OWN, 2})
    register.read(OWN, register.round, [(CLIENT, 10)], [])
    register.has_read(OWN, register.round)
    register.read(2, register.round, [], [(CLIENT, 102)])
    register.has_read(2, register.round)

    assert register.register(2, CLIENT, 20) == [Outdated(OWN, CLIENT)]


def test_a_claim_that_ended_while_another_member_kept_the_entry_is_forgotten() -> None:
    """What a member does not list any more when it is read has ended: the next claim may begin."""
    before, after = (OWN, 2, 3), (OWN, 2)
    names = (f"client-{number}" for number in range(100))
    client = next(each for each in names if {registrar_of(each, view) for view in (before, after)} == {OWN})
    register = Register(OWN)
    register.change(before, {OWN, 2, 3})
    for uid in before:
        register.read(uid, register.round, [], [])
        register.has_read(uid, register.round)
    assert granted(register.locate(2, 102, client)) == [(2, 102)]
    assert granted(register.locate(2, 103, client)) == []

    # A member of a moment between, which this one has not seen, was told of the end and of the owner.
    waiting = register.change(after, {OWN, 2})
    waiting += register.read(2, register.round, [], [(client, 103)])
    waiting += register.read(2, register.round, [(client, 10)], None)
    ended = register.has_read(2, register.round)

    assert waiting == []
    assert ended == [Elsewhere(2, 102), Granted(2, 103, 2, 10)]


def test_claims_of_one_client_id_are_bounded() -> None:
    """Clients that share one can't make each claim of it slower and slower; others have their own line."""
    register = Register(OWN)
    register.change((OWN,), {OWN})
    register.read(OWN, register.round, [], [])
    register.has_read(OWN, register.round)

    effects = [register.locate(OWN, number, CLIENT) for number in range(MAX_CLAIMS_OF_ID + 1)]

    assert granted(effects[0]) == [(OWN, 0)]
    assert effects[1:] == [[]] * (MAX_CLAIMS_OF_ID - 1) + [[Elsewhere(OWN, MAX_CLAIMS_OF_ID)]]
    assert granted(register.locate(OWN, 1000, "another")) == [(OWN, 1000)]
    assert register.claims == MAX_CLAIMS_OF_ID + 1
