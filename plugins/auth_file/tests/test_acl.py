"""Access control lists: what is read, and what comes of it; a test of its own compares that with Mosquitto."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_auth_file import acl as acl_module
from kinmqtt_auth_file.acl import Access, Acl, Rule, parse_acl
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.reasons import ReasonCode


def may(text: str, user: str | None, *topics: str, client_id: str = "c") -> list[bool]:
    """Whether a user may write to each topic."""
    acl = parse_acl(text.encode(), "acl")
    return [acl.may_write(user, client_id, topic).allowed for topic in topics]


def problem(text: str) -> str:
    """The one thing that is wrong with a file."""
    with pytest.raises(SettingsError) as told:
        parse_acl(text.encode(), "acl")
    [problem] = told.value.problems
    return str(problem)


def test_lines_before_any_user_are_for_clients_without_a_name() -> None:
    """And for nobody else; an empty name is none."""
    text = "topic a\nuser u\ntopic b\n"

    assert may(text, None, "a", "b") == [True, False]
    assert may(text, "", "a", "b") == [True, False]
    assert may(text, "u", "a", "b") == [False, True]
    assert may(text, "v", "a", "b") == [False, False]


def test_a_user_may_have_several_blocks() -> None:
    """They count together."""
    assert may("user u\ntopic a\nuser v\ntopic b\nuser u\ntopic c\n", "u", "a", "b", "c") == [True, False, True]


def test_read_and_write_are_two_things() -> None:
    """Without a word it is both."""
    acl = parse_acl(b"topic read r\ntopic write w\ntopic readwrite b\ntopic n\n", "acl")

    assert [acl.may_read(None, "c", topic).allowed for topic in "rwbn"] == [True, False, True, True]
    assert [acl.may_write(None, "c", topic).allowed for topic in "rwbn"] == [False, True, True, True]


def test_deny_comes_first_wherever_it_stands() -> None:
    """Among a user's own lines, and among patterns; but a user's own right beats a pattern that denies."""
    assert may("user u\ntopic a/#\ntopic deny a/b\n", "u", "a/b", "a/c") == [False, True]
    assert may("pattern a/#\npattern deny a/%u\n", "u", "a/u", "a/c") == [False, True]
    assert may("user u\ntopic deny a/b\npattern a/#\n", "u", "a/b", "a/c") == [False, True]
    assert may("user u\ntopic a/b\npattern deny a/#\n", "u", "a/b", "a/c") == [True, False]


def test_patterns_are_filled_in_for_each_client() -> None:
    """In one pass; who has no user name has no part in those that ask for one."""
    text = "pattern %u/x%c\n"

    assert may(text, "u", "u/xc", "u/xd", "%u/xc") == [True, False, False]
    assert may(text, "%c", "%c/xc", "c/xc") == [True, False]
    assert may(text, None, "/xc", "%u/xc") == [False, False]
    assert may("pattern a/%u\n", "u/v", "a/u/v") == [True]


@pytest.mark.parametrize(("user", "client_id"), [("u+", "c"), ("u#", "c"), ("u", "c+"), ("u", "#"), (None, "+")])
def test_a_name_that_is_a_wildcard_gets_nothing_from_patterns(user: str | None, client_id: str) -> None:
    """Not even from one that has no name in it; a user's own lines hold."""
    text = "topic own\nuser u\ntopic own\nuser u+\ntopic own\nuser u#\ntopic own\npattern open\n"

    assert may(text, user, "open", "own", client_id=client_id) == [False, True]


def test_dollar_topics_want_rules_of_their_own() -> None:
    """A wildcard in front does not match them; some belong to the broker, whatever the rules say."""
    assert may("topic #\ntopic +/x\n", None, "$a/x", "$", "b/x") == [False, False, True]
    assert may("pattern #\n", None, "$a/x") == [False]
    text = "topic $SYS/#\ntopic $SYSTEM\ntopic $share/#\ntopic $a/#\ntopic $SYS/broker/connection/+/state\n"
    topics = ("$SYS/x", "$SYSTEM", "$share/x", "$a/x", "$SYS/broker/connection/x/state")
    acl = parse_acl(text.encode(), "acl")

    assert may(text, None, *topics) == [False, False, False, True, True]
    assert [acl.may_read(None, "c", topic).allowed for topic in topics] == [True, True, False, True, True]


def test_a_denial_names_the_rule() -> None:
    """File and line, or that there is none."""
    acl = parse_acl(b"# x\ntopic deny a/#\npattern deny b\ntopic c\n", "/etc/acl", "acl")

    assert acl.may_read(None, "c", "a/b").text == "denied by acl, line 2"
    assert acl.may_read(None, "c", "b").text == "denied by acl, line 3"
    assert acl.may_read(None, "c", "d").text == "no rule of acl allows it"
    assert acl.may_read(None, "c", "d").reason is ReasonCode.NOT_AUTHORIZED


def test_lines_are_read_as_mosquitto_reads_them() -> None:
    """Spaces in front, between and behind, topics with spaces, line ends of either sort, words that are topics."""
    text = "  topic   write   a  \r\n\n#topic x\ntopic write b c \t\n"
    text += "user   u v  \ntopic deny\ntopic write\n\t\ntopic t \n"

    assert may(text, None, "a", "b c", "b") == [True, True, False]
    assert may(text, "u v", "deny", "write", "t") == [True, True, True]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n tpic a\n", "acl:2: a line must begin with user, topic or pattern, not with 'tpic'"),
        (
            "Topic a\n",
            "acl:1: a line must begin with user, topic or pattern, not with 'Topic'; write it in lower case",
        ),
        ("topic\ta\n", "write spaces instead of tabs"),
        ("\ttopic a\n", "write spaces instead of tabs"),
        ("topic write\ta\n", "contains control characters"),
        ("  # x\n", "a comment has its '#' in the first column"),
        ("topic\n", "expected `topic [read|write|readwrite|deny] TOPIC`, but there is no topic"),
        ("pattern   \n", "expected `pattern "),
        ("user \n", "expected `user NAME`"),
        ("user a\x01b\n", "contains control characters"),
        ("topic wirte a\n", "'wirte' is not an access, which is read, write, readwrite or deny"),
        ("topic a # note\n", "'a' is not an access"),
        ("topic WRITE a\n", "'WRITE' is not an access"),
        ("topic a#\n", "'a#' is not a topic filter: a '#'"),
        ("pattern a/#/b\n", "a '#' must be the whole last level"),
        ("topic a+/b\n", "a '+' must be a whole level"),
        ("topic ++\n", "a '+' must be"),
        ("topic " + "x" * 65536 + "\n", "longer than MQTT allows"),
        ("\ufefftopic a\n", "byte order mark"),
    ],
)
def test_each_mistake_is_located(text: str, told: str) -> None:
    """Where Mosquitto would not start, neither do we, and say how to mend it."""
    assert told in problem(text)


def test_a_pattern_for_everybody_is_noted() -> None:
    """It may be meant; Mosquitto warns of it as well."""
    assert parse_acl(b"pattern a/%u\npattern b\n", "acl").notes == (
        "acl:2: the pattern 'b' has neither %u nor %c: it applies to all clients",
    )


def test_more_clients_and_topics_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting costs time and never the right answer."""
    monkeypatch.setattr(acl_module, "CACHED_ANSWERS", 2)
    monkeypatch.setattr(acl_module, "CACHED_CLIENTS", 2)
    acl = parse_acl(b"pattern write a/%c\n", "acl")

    for _ in range(2):
        for client in ("c1", "c2", "c3"):
            assert acl.may_write(None, client, f"a/{client}").allowed
            assert not acl.may_write(None, client, "a/other").allowed
            assert not acl.may_write(None, client, "a/" + "x" * 2000).allowed


# Beside a plain model

NAMES = st.sampled_from(["u", "v", "u+", "%c", "u/v"])
LEVELS = st.sampled_from(["a", "b", "", "u", "c", "$x", "$SYS", "x y"])
FILTERS = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(LEVELS | st.sampled_from(["+", "%u", "%c", "x%u"]), min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
).filter(lambda filter: filter.strip() == filter and filter != "")
RULES = st.lists(st.tuples(st.none() | NAMES, st.booleans(), st.sampled_from(Access), FILTERS), max_size=12)
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)


def plainly_matches(filter: list[str], topic: list[str]) -> bool:
    """The matching of section 4.7, level by level."""
    if not filter:
        return not topic
    if filter[0] == "#":
        return True
    if not topic:
        return False
    return filter[0] in ("+", topic[0]) and (plainly_matches(filter[1:], topic[1:]))


def fits(filter: str, topic: str) -> bool:
    """Whether a filter matches, where a wildcard in front does not match a ``$``."""
    if topic[:1] == "$" and filter[:1] in ("+", "#"):
        return False
    return plainly_matches(filter.split("/"), topic.split("/"))


def plainly(rules: list[tuple[str | None, bool, Access, str]], user: str | None, access: Access, topic: str) -> bool:
    """What comes of the rules for a client ``c``, without any of what makes it fast."""
    if topic.startswith("$SYS") and access is Access.WRITE:
        return False
    own = [(kind, filter) for whose, pattern, kind, filter in rules if not pattern and whose == user]
    filled = [
        (kind, "\0".join(part.replace("%c", "c") for part in filter.split("%u")).replace("\0", user or ""))
        for _, pattern, kind, filter in rules
        if pattern and not (user is None and "%u" in filter) and "+" not in (user or "")
    ]
    for group in (own, filled):
        kinds = {kind for kind, filter in group if fits(filter, topic)}
        if Access.DENY in kinds:
            return False
        if access in kinds or Access.READWRITE in kinds:
            return True
    return False


@given(
    RULES, st.none() | NAMES, st.sampled_from([Access.READ, Access.WRITE]), st.lists(TOPICS, min_size=1, max_size=5)
)
def test_it_answers_as_a_plain_model_does(
    rules: list[tuple[str | None, bool, Access, str]], user: str | None, access: Access, topics: list[str]
) -> None:
    """From a file with these rules; each question twice, the second time from memory."""
    # Lines of clients without a name stand before any user.
    lines = [
        f"{'pattern' if pattern else 'topic'} {kind.value} {f}" for who, pattern, kind, f in rules if who is None
    ]
    for who, pattern, kind, f in rules:
        if who is not None:
            lines += [f"user {who}", f"{'pattern' if pattern else 'topic'} {kind.value} {f}"]
    acl = parse_acl("\n".join(lines).encode(), "acl")
    ask = acl.may_read if access is Access.READ else acl.may_write

    for topic in [*topics, *topics]:
        assert ask(user, "c", topic).allowed is plainly(rules, user, access, topic)


@given(st.binary(max_size=200) | st.text("topicusern #+/%\nwad", max_size=100).map(str.encode))
def test_any_content_is_read_or_a_mistake(content: bytes) -> None:
    """Nothing else is raised."""
    try:
        parse_acl(content, "acl")
    except SettingsError as error:
        assert error.problems


def test_an_empty_list_allows_nothing() -> None:
    """Neither reading nor writing, to nobody."""
    acl = Acl("acl", {None: [], "u": [Rule(Access.DENY, "a", 1)]})

    assert not acl.may_read(None, "c", "a").allowed
    assert not acl.may_write("u", "c", "a").allowed


def test_a_name_opens_no_topic_of_the_broker_s() -> None:
    """Who is called $SYS gains nothing by a pattern that begins with its name; a pattern that denies holds."""
    acl = parse_acl(b"pattern %c/#\npattern read %u/#\npattern to/%c\npattern $SYS/%c\n", "acl")
    denies = parse_acl(b"pattern $a/#\npattern deny %c/x\n", "acl")
    read = [acl.may_read("$SYS", "$SYS", topic).allowed for topic in ("$SYS/x", "to/$SYS", "$SYS/$SYS")]

    assert read == [False, True, True]
    assert [denies.may_read(None, "$a", topic).allowed for topic in ("$a/x", "$a/y")] == [False, True]
