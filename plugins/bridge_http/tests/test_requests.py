"""What a message becomes in a request, and what it can't become."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_http_harness.making import item, message, send
from bridge_http_harness.server import Server
from kinmqtt_bridge_http.bodies import CACHED_HEADS, MessageJson, cloud_event, join
from kinmqtt_bridge_http.requests import RequestMaker, idempotency_key
from kinmqtt_bridge_http.settings import SinkSettings
from kinmqtt_bridge_http.templates import UrlTemplate, body_maker, header_template
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.bridge import Answer, Item, Poison
from kinmqtt_spi.values import Message, MessageId, Publisher
from spi_harness.examples import examples

TEXTS = st.text(st.characters(codec="utf-8"), max_size=9)
MESSAGES = st.builds(
    Message,
    st.text(st.characters(codec="utf-8", exclude_characters="+#\0"), min_size=1, max_size=12),
    st.binary(max_size=9) | TEXTS.map(str.encode),
    st.integers(0, 2),
    st.booleans(),
    st.builds(
        Properties,
        content_type=st.none() | TEXTS,
        response_topic=st.none() | TEXTS,
        correlation_data=st.none() | st.binary(max_size=9),
        user_property=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    ),
    publisher=st.builds(Publisher, TEXTS, st.none() | TEXTS),
    received_at=st.floats(0, 4e9),
)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that takes everything."""
    server = Server()
    yield server
    server.stop()


def divided(items: list[Item], **settings: Any) -> tuple[list[list[int]], list[Answer]]:
    """Return the places of the messages in each request, and the answers."""
    answers: list[Answer] = [None] * len(items)
    maker = RequestMaker(SinkSettings(**{"url": "http://a/", **settings}))
    requests = maker.divide(items, answers)
    longest = settings.get("max_body_bytes", 1 << 20)
    assert all(len(maker.body(request)) <= longest for request in requests)
    return [request.numbers for request in requests], answers


def test_a_message_is_json(server: Server) -> None:
    """With our own names; headers say what it is and which."""
    properties = Properties(
        content_type="text/plain",
        response_topic="r",
        correlation_data=b"\xff",
        user_property=(("a", "1"), ("a", "2")),
    )
    sent = item("sensors/a", "21.5°".encode(), "ada", qos=1, retain=True, properties=properties)

    assert send(f"{server.url}/in?x=1", [sent]) == [None]

    [got] = server.got
    id = f"{7:016x}-{sent.message.id.counter}"
    assert (got.method, got.path) == ("POST", "/in?x=1")
    assert json.loads(got.body) == {
        "id": id, "topic": "sensors/a", "qos": 1, "retain": True, "clientid": "ada", "username": "user",
        "received_at": 1_700_000_000.5, "content_type": "text/plain", "response_topic": "r",
        "correlation_data": "/w==", "user_properties": [["a", "1"], ["a", "2"]], "payload": "21.5°",
    }  # fmt: skip
    assert got.headers["content-type"] == "application/json"
    assert got.headers["idempotency-key"] == id
    assert got.headers["user-agent"] == "kinmqtt"


@pytest.mark.parametrize(
    ("form", "format", "content_type"),
    [
        ("message", "ndjson", "application/x-ndjson"),
        ("message", "json_array", "application/json"),
        ("cloudevents", "one", "application/cloudevents+json"),
        ("cloudevents", "json_array", "application/cloudevents-batch+json"),
    ],
)
def test_a_body_says_what_it_is(server: Server, form: Any, format: Any, content_type: str) -> None:
    """Its content type follows from the settings."""
    items = [item() for _ in range(3)]

    assert send(server.url, items, json=form, format=format) == [None] * 3

    assert {got.headers["content-type"] for got in server.got} == {content_type}
    assert len(server.got) == (3 if format == "one" else 1)


def test_a_message_is_a_cloud_event() -> None:
    """Version 1.0, with the names of MQTT in extensions."""
    sent = message("sensors/a", b"21.5", qos=1)

    assert json.loads(cloud_event(sent)) == {
        "specversion": "1.0", "id": f"{7:016x}-{sent.id.counter}", "source": f"kinmqtt/{7:016x}",
        "type": "io.kinmqtt.message", "subject": "sensors/a", "time": "2023-11-14T22:13:20.500000Z",
        "mqttclientid": "ada", "mqttqos": 1, "mqttretain": False, "datacontenttype": "text/plain", "data": "21.5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "content_type", "expected"),
    [
        (b"\xff", None, {"datacontenttype": "application/octet-stream", "data_base64": "/w=="}),
        (b"\xff", "image/png", {"datacontenttype": "image/png", "data_base64": "/w=="}),
        (b"x", "text/csv", {"datacontenttype": "text/csv", "data": "x"}),
        (b"{}", "application/json", {"datacontenttype": "application/json", "data_base64": "e30="}),
    ],
)
def test_data_of_a_cloud_event_is_what_its_type_says(payload: bytes, content_type: str, expected: Any) -> None:
    """A text that is said to be JSON would be a value, and the payload may be none."""
    event = json.loads(cloud_event(message(payload=payload, properties=Properties(content_type=content_type))))

    assert {name: event[name] for name in event if name.startswith("data")} == expected


@settings(max_examples=examples(100))
@given(MESSAGES)
def test_any_message_is_one_line_of_json(message: Message) -> None:
    """In both forms, whatever is in it."""
    own, event = MessageJson().line(message), cloud_event(message)

    assert json.loads(own)["topic"] == json.loads(event)["subject"] == message.topic
    assert b"\n" not in own + event
    assert json.loads(join([own, event], "json_array")) == [json.loads(own), json.loads(event)]
    assert join([own, event], "ndjson").splitlines() == [own, event]


def test_the_cache_of_topics_is_bounded() -> None:
    """Clients choose topics."""
    maker = MessageJson()
    for number in range(2 * CACHED_HEADS):
        maker.line(message(f"t/{number}"))
    maker.line(message("x" * 60_000))

    assert len(maker._heads) <= CACHED_HEADS
    assert max(len(topic) for topic, *_ in maker._heads) < 100


# URLs


@pytest.mark.parametrize(
    ("template", "topic", "path"),
    [
        ("/in/${topic}", "a/b c/ä", "/in/a/b%20c/%C3%A4"),
        ("/in/${topic[2]}?t=${topic}", "a/b", "/in/b?t=a/b"),
        ("/in/${clientid}", "a", "/in/ada%2Fx%3F%23%25"),
        ("/in?t=${topic}", "a&b=c", "/in?t=a%26b%3Dc"),
        ("/in%20/x", "a", "/in%20/x"),
        ("/in/${topic}", "a//b/", "/in/a//b/"),
    ],
)
def test_a_url_follows_from_the_message(server: Server, template: str, topic: str, path: str) -> None:
    """Only slashes of the topic divide it; the server gets exactly that."""
    assert send(server.url + template, [item(topic, client="ada/x?#%")]) == [None]

    assert server.got[0].path == path


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        ("a/../b", "would be '.' or '..'"),
        ("..", "would be '.' or '..'"),
        ("./a", "would be '.' or '..'"),
        ("ä" * 4000, "the URL would have 240"),
    ],
)
def test_a_topic_can_not_leave_its_place(topic: str, problem: str) -> None:
    """Some servers would go a level up."""
    [said] = divided([item(topic)], url="http://a/in/${topic}")[1]

    assert isinstance(said, Poison)
    assert problem in said.text


def test_a_missing_part_of_a_url_is_poison() -> None:
    """The others are sent."""
    requests, answers = divided([item("a/b"), item("a"), item("c/b")], url="http://a/${topic[2]}")

    assert requests == [[0], [2]]
    assert answers[1] == Poison("a part of the URL 'http://a/${topic[2]}' is missing in the message")


@settings(max_examples=examples(100))
@given(MESSAGES, st.sampled_from(["http://h:1/p/${topic}", "http://h:1/p/${clientid}/x?u=${username}"]))
def test_no_message_leaves_the_place_of_its_url(message: Message, template: str) -> None:
    """Nor is there anything in it that a request line can't have."""
    try:
        url = UrlTemplate(template).fill_in(message)
    except ValueError:
        return
    assert url.startswith("http://h:1/p/") and url.isascii() and url.isprintable() and " " not in url
    assert not {".", ".."} & set(url.partition("?")[0].split("/"))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://a/", "write http://host:port/path"),
        ("a/b", "write http://host:port/path"),
        ("http://", "write http://host:port/path"),
        ("http://a:0/", "write http://host:port/path"),
        ("http://a:x/", "is no URL"),
        ("http://${clientid}/", "the host is fixed"),
        ("http://a${topic}", "the host is fixed"),
        ("http://u:hidden@a/", "use secret_headers"),
        ("http://a/#b", "fragment"),
        ("http://a/b/../c", "without . and .."),
        ("http://a/ä", "%XX"),
        ("http://a/b c", "%XX"),
        ("http://a/${topics}", "did you mean 'topic'"),
    ],
)
def test_an_impossible_url_is_named(url: str, problem: str) -> None:
    """At the start; a password is not repeated."""
    with pytest.raises(ValueError) as refused:
        UrlTemplate(url)

    assert problem in str(refused.value)
    assert "hidden" not in str(refused.value)


# Headers


def test_headers_follow_from_the_message(server: Server, tmp_path: Path) -> None:
    """Templates, and secrets from files, whose last line break does not count."""
    (tmp_path / "token").write_text("Bearer abc\n")

    answers = send(
        server.url,
        [item("a/b")],
        method="PUT",
        headers={"X-Level": "<${topic[2]}>", "X-Site": "north", "X-None": "${topic[9]}"},
        secret_headers={"Authorization": tmp_path / "token"},
        content_type="application/vnd.x+json",
    )

    assert answers == [None]
    [got] = server.got
    assert got.method == "PUT"
    assert got.headers["x-level"] == "<b>"
    assert got.headers["x-site"] == "north"
    assert got.headers["x-none"] == ""
    assert got.headers["authorization"] == "Bearer abc"
    assert got.headers["content-type"] == "application/vnd.x+json"


def test_a_client_can_not_make_a_header(server: Server) -> None:
    """Line breaks and what is not ASCII are escaped."""
    assert send(server.url, [item(client="a\r\nX-Admin: 1\0ä%")], headers={"X-Client": "${clientid}"}) == [None]

    assert server.got[0].headers["x-client"] == "a%0D%0AX-Admin: 1%00%C3%A4%25"
    assert "x-admin" not in server.got[0].headers


@settings(max_examples=examples(100))
@given(MESSAGES)
def test_a_header_is_printable(message: Message) -> None:
    """Whatever a client is called."""
    value = header_template("${topic} ${clientid} ${username}").fill_in_present(message)

    assert value.isascii() and value.isprintable()


def test_a_header_that_is_too_long_is_poison() -> None:
    """Servers would refuse it."""
    [said] = divided([item("x" * 9000)], headers={"X-Topic": "${topic}"})[1]

    assert said == Poison("the header X-Topic would have 9000 characters, and 8000 are allowed")


# Bodies


@pytest.mark.parametrize(
    ("template", "content_type", "body"),
    [
        ('{"text": "${topic}: ${payload}"}', "", rb'{"text": "a/\"b: x\"y\n"}'.replace(b'x"y', rb"x\"y")),
        ("${payload}", "", b'x"y\n'),
        ("${topic[1]} ${qos} ${retain} ${payload}", "text/plain", b'a 0 false x"y\n'),
        ("${username}-${topic[9]}-${id}", "text/plain", b"user--0000000000000007-1"),
    ],
)
def test_a_body_follows_from_a_template(template: str, content_type: str, body: bytes) -> None:
    """In JSON values are escaped, so that they can't leave their string."""
    made = body_maker(template, is_json="json" in (content_type or "application/json"))

    sent = Message('a/"b', b'x"y\n', publisher=Publisher("ada", "user"), id=MessageId(7, 1))

    assert made(sent) == body


def test_a_payload_that_is_no_text_goes_as_it_is_or_is_poison(server: Server) -> None:
    """Alone it needs no encoding."""
    assert send(server.url, [item(payload=b"\xff\0")], body="${payload}", content_type="image/png") == [None]
    assert server.bodies() == [b"\xff\0"]

    assert send(server.url, [item(payload=b"\xff\0")], body='"${payload}"') == [
        Poison("the payload is not UTF-8, which the template of the body needs")
    ]


@settings(max_examples=examples(100))
@given(MESSAGES)
def test_no_message_leaves_its_string(message: Message) -> None:
    """JSON stays the JSON of the template."""
    make = body_maker('{"a": "${topic}", "b": "${payload}", "c": "${clientid}${username}"}', is_json=True)
    try:
        made = json.loads(make(message))
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        assert "not UTF-8" in str(error)
    else:
        assert list(made) == ["a", "b", "c"]
        assert (made["a"], made["b"].encode()) == (message.topic, message.payload)


# Batches


def test_a_batch_is_divided_by_url_headers_and_size() -> None:
    """In the order of the messages."""
    items = [item(topic, payload=b"x" * 400) for topic in "aabababbb"]

    requests, answers = divided(items, url="http://a/${topic}", format="ndjson", max_body_bytes=1300)

    assert requests == [[0, 1], [2, 4], [3, 5], [6, 7], [8]]
    assert answers == [None] * 9
    assert divided(items, format="ndjson", headers={"X-Topic": "${topic}"})[0] == [[0, 1, 3, 5], [2, 4, 6, 7, 8]]


@pytest.mark.parametrize("format", ["one", "ndjson", "json_array"])
@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 900), min_size=1, max_size=12))
def test_no_body_is_longer_than_allowed(format: str, sizes: list[int]) -> None:
    """Each message is in one request, or is poison."""
    items = [item(payload=b"x" * size) for size in sizes]

    requests, answers = divided(items, format=format, max_body_bytes=1024)

    poison = [number for number, each in enumerate(answers) if each is not None]
    assert sorted([*chain(*requests), *poison]) == list(range(len(items)))
    assert all(len(items[number].message.payload) > 700 for number in poison)


def test_a_message_that_is_too_long_is_poison() -> None:
    """The server is not asked; the text says what to raise."""
    [said] = divided([item(payload=b"x" * 2000)], max_body_bytes=1024)[1]

    assert isinstance(said, Poison)
    assert "max_body_bytes allows 1022: raise it, and the server's limit" in said.text


def test_a_key_is_the_same_only_for_the_same_messages() -> None:
    """If one in the middle has expired, the batch that comes again is another one, also with one more at its end."""
    items = [item() for _ in range(4)]
    maker = RequestMaker(SinkSettings(url="http://a/", format="ndjson"))

    def key(*numbers: int) -> str:
        chosen = [items[number] for number in numbers]
        [request] = maker.divide(chosen, [None] * len(chosen))
        return idempotency_key(request, chosen)[1]

    first, last = (f"{7:016x}-{items[number].message.id.counter}" for number in (0, 2))
    assert key(0, 1, 2) == f"{first}..{last}/3"
    assert len({key(0, 1, 2), key(0, 2, 3), key(0, 2), key(0, 1), key(0), key(0, 1, 2, 3)}) == 6
