"""What a server's answer means for the messages of a request: real sockets, and every answer by a script."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_http_harness.making import item, open_sink, run, send
from bridge_http_harness.server import HANG, Got, Server, Then, answer
from kinmqtt_bridge_http.answers import MAX_RETRY_AFTER_S, Reply, meaning, retry_after_s
from kinmqtt_bridge_http.client import MAX_ANSWER_BYTES
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import Poison, Retry, SendSettings
from spi_harness.processes import free_port

NOW = 1_700_000_000.0
PLACE = "plugins.bridge_http.sinks.out: "


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that takes everything, until a test gives it a script."""
    server = Server()
    yield server
    server.stop()


def in_turn(*said: bytes | Then) -> Any:
    """A script: these answers, then the last one again and again."""
    left = list(said)
    return lambda got: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_success_is_taken(server: Server, status: int) -> None:
    """Whatever the server says beside it."""
    server.script = lambda got: answer(status, b"" if status == 204 else b"thanks")

    assert send(server.url, [item()]) == [None]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_what_may_be_better_later_comes_again(server: Server, status: int) -> None:
    """The server's words are in the text, cut and escaped."""
    server.script = lambda got: answer(status, b"not \x1b[31mnow\n" + b"x" * 5000)

    [said] = send(server.url, [item()])

    assert isinstance(said, Retry)
    assert said.text.startswith(f"the server answers {status} Said: 'not \\x1b[31mnow\\nxxx")
    assert len(said.text) < 300
    assert said.after_s is None


@pytest.mark.parametrize("status", [400, 404, 409, 413, 415, 422, 431])
def test_what_the_server_will_never_take_is_poison(server: Server, status: int) -> None:
    """With the server's words. Another message may have another URL here, so that 404 is about this one."""
    server.script = lambda got: answer(status, b"no" if "bad" in got.path else b"") if "bad" in got.path else answer()

    answers = send(server.url + "/${topic}", [item("good"), item("bad"), item("good")])

    assert answers == [None, Poison(f"the server answers {status} Said: 'no'"), None]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, "the server answers 401 Said: 'who?': check secret_headers, signature_secret_file and tls"),
        (403, "the server answers 403 Said: 'who?': check secret_headers, signature_secret_file and tls"),
        (404, "url, method: the server answers 404 Said: 'who?'"),
        (405, "url, method: the server answers 405 Said: 'who?'"),
        (410, "url, method: the server answers 410 Said: 'who?'"),
    ],
)
def test_a_refusal_is_not_the_messages_fault(server: Server, status: int, text: str) -> None:
    """B7: an operator must act. A fixed URL that is not there would make poison of everything."""
    server.script = lambda got: answer(status, b"who?")

    with pytest.raises(SinkRefused) as refused:
        send(server.url, [item()])

    assert str(refused.value) == PLACE + text


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_told_and_not_followed(server: Server, status: int) -> None:
    """It might lead messages and secrets to another host."""
    server.script = lambda got: answer(status, Location=f"{server.url}/there")

    with pytest.raises(SinkRefused) as refused:
        send(f"{server.url}/here", [item()])

    assert str(refused.value) == (
        f"{PLACE}url: the server redirects to '{server.url}/there' ({status}), which is not followed: "
        "write the final URL"
    )
    assert [got.path for got in server.got] == ["/here"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("0", None),
        ("-1", None),
        ("", None),
        ("soon", None),
        ("1.5", None),
        ("99999999999999999999", MAX_RETRY_AFTER_S),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:10 GMT", None),
        ("Tue, 14 Nov 2033 22:13:10 GMT", MAX_RETRY_AFTER_S),
        ("Tue, 99 Nov 2033 22:13:10 GMT", None),
        ("Tuesday, 14-Nov-23 22:13:50 GMT", 30.0),
    ],
)
def test_a_server_says_when_to_come_again(text: str, seconds: float | None) -> None:
    """In seconds or as a date (RFC 9110, 10.2.3); within bounds."""
    assert retry_after_s(text, NOW) == seconds


def test_a_pause_that_the_server_asks_for_is_kept(server: Server) -> None:
    """Its header is in the answer."""
    server.script = lambda got: answer(429, Retry_After="7")

    [said] = send(server.url, [item()])

    assert said == Retry("the server answers 429 Said", 7.0)


def test_nobody_there_is_not_a_refusal() -> None:
    """The port is closed: it is tried again."""
    with pytest.raises(ServiceUnavailable, match=r"no answer: Cannot connect to host 127\.0\.0\.1"):
        send(f"http://127.0.0.1:{free_port()}", [item()])


def test_an_unknown_host_is_not_a_refusal() -> None:
    """Names come and go."""
    with pytest.raises(ServiceUnavailable, match=r"no answer: Cannot connect to host nobody\.invalid"):
        send("http://nobody.invalid", [item()])


@pytest.mark.parametrize(
    "said",
    [
        HANG,
        Then(b"HTTP/1.1 200 OK\r\n"),
        Then(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
        Then(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha"),
        Then(b"220 smtp.example ESMTP\r\n"),
        Then(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        Then(),
        Then(resets=True),
    ],
    ids=["hangs", "cut-head", "cut-body", "cut-chunk", "not-http", "endless-head", "slow-body", "closes", "resets"],
)
def test_half_an_answer_is_none(server: Server, said: bytes | Then) -> None:
    """The message comes again, with the same id."""
    server.script = lambda got: said

    with pytest.raises(ServiceUnavailable, match="no answer"):
        send(server.url, [item()], timeout_s=0.3)


def test_an_idle_connection_that_the_server_has_closed_costs_nothing(server: Server) -> None:
    """The request goes over another one at once: no pause, no line in the log."""
    server.script = lambda got: Then(answer()) if got.body == b"1" else answer()

    async def test() -> None:
        async with open_sink(server.url, body="${payload}") as sink:
            for number in range(6):
                assert await sink.send([item(payload=b"%d" % (number % 2))]) is None

    run(test())

    assert len(server.got) == 6


def test_a_connection_that_ends_unanswered_is_tried_once_more(server: Server) -> None:
    """The server closes it when the request is under way, as at the end of its keep-alive."""
    server.script = in_turn(answer(), Then(), answer())

    async def test() -> None:
        async with open_sink(server.url) as sink:
            assert await sink.send([item()]) is None
            assert await sink.send([item()]) is None

    run(test())

    assert [got.connection for got in server.got] == [1, 1, 2]
    assert server.got[1].headers["idempotency-key"] == server.got[2].headers["idempotency-key"]


def test_what_follows_an_answer_is_no_answer(server: Server) -> None:
    """A body that is longer than announced must not answer for the next message."""
    smuggled = answer(500, b"no") + answer(200)
    server.script = in_turn(smuggled, answer(500, b"no"))

    async def test() -> None:
        async with open_sink(server.url) as sink:
            for _ in range(2):
                try:
                    answers = await sink.send([item()])
                except ServiceUnavailable:
                    continue
                assert answers is not None
                assert isinstance(answers[0], Retry)

    run(test())


def test_a_long_answer_is_not_read_to_its_end(server: Server) -> None:
    """It is taken, and its connection is closed."""
    server.script = lambda got: answer(200, b"x" * (50 * MAX_ANSWER_BYTES))

    async def test() -> None:
        async with open_sink(server.url) as sink:
            for _ in range(3):
                assert await sink.send([item()]) is None

    run(test())

    assert server.connections == 3


def test_an_answer_never_shows_a_secret(server: Server, tmp_path: Path) -> None:
    """Some servers repeat what they were sent."""
    (tmp_path / "token").write_text("Bearer s3cret\n")
    server.script = lambda got: answer(401, f"{got.headers['authorization']} is no token".encode())

    with pytest.raises(SinkRefused) as refused:
        send(server.url, [item()], secret_headers={"Authorization": tmp_path / "token"})

    assert "s3cret" not in str(refused.value)
    assert "*** is no token" in str(refused.value)


# Batches


def test_what_was_taken_does_not_come_again(server: Server) -> None:
    """The third of four fails: those before are acknowledged, and the rest comes again."""
    server.script = lambda got: answer(503) if got.path == "/3" else answer()
    items = [item(str(number)) for number in range(1, 5)]

    answers = send(server.url + "/${topic}", items)

    assert answers[:2] == [None, None]
    assert all(isinstance(each, Retry) for each in answers[2:])
    assert [got.path for got in server.got] == ["/1", "/2", "/3"]


@pytest.mark.parametrize(("said", "after_s"), [(answer(403), 0.0), (Then(), None)], ids=["refuses", "closes"])
def test_a_failure_within_a_batch_leaves_what_was_taken(
    server: Server, said: bytes | Then, after_s: float | None
) -> None:
    """A refusal is raised by the next batch, which comes at once."""
    server.script = lambda got: said if got.path == "/3" else answer()
    items = [item(str(number)) for number in range(1, 5)]

    answers = send(server.url + "/${topic}", items)

    assert answers[:2] == [None, None]
    assert [each.after_s for each in answers[2:] if isinstance(each, Retry)] == [after_s, after_s]
    with pytest.raises((SinkRefused, ServiceUnavailable)):
        send(server.url + "/${topic}", items[2:])


def test_a_message_that_was_not_sent_never_counts_as_taken(server: Server) -> None:
    """Another key's failure stops the batch while a message waits for its turn."""
    server.script = lambda got: answer(503 if got.body == b"b" else 200)
    items = [item(payload=b"a1", client="a"), item(payload=b"a2", client="a"), item(payload=b"b", client="b")]

    answers = send(server.url, items, body="${payload}")

    assert isinstance(answers[2], Retry)
    assert (answers[1] is None) == (b"a2" in server.bodies())


def test_keys_do_not_wait_for_each_other(server: Server) -> None:
    """The first of one key is answered when another key's request has come, over another connection."""
    meeting = threading.Barrier(3, timeout=10)

    def script(got: Got) -> bytes:
        if got.body == b"0":
            meeting.wait()
        return answer()

    server.script = script
    items = [item(payload=b"%d" % number, client=f"c{client}") for number in range(5) for client in range(3)]

    assert send(server.url, items, body="${payload}", connections=3) == [None] * 15
    assert server.connections == 3


def test_messages_of_a_key_go_one_after_the_other(server: Server) -> None:
    """However many connections there may be."""
    items = [item(payload=b"%d" % number) for number in range(20)]

    assert send(server.url, items, body="${payload}", connections=8) == [None] * 20
    assert server.bodies() == [b"%d" % number for number in range(20)]
    assert server.connections == 1


@pytest.mark.parametrize("format", ["ndjson", "json_array"])
def test_the_poison_of_a_batch_is_found(server: Server, format: str) -> None:
    """The server refuses the whole batch: it is divided, and the others are taken in their order."""
    server.script = lambda got: answer(422 if b"bad" in got.body else 200)
    items = [item(payload=b"bad" if number in (3, 11) else b"<%d>" % number) for number in range(16)]

    answers = send(server.url, items, format=format)

    assert [number for number, each in enumerate(answers) if isinstance(each, Poison)] == [3, 11]
    assert answers.count(None) == 14
    taken = b"".join(got.body for got in server.got if b"bad" not in got.body)
    places = [taken.index(each.message.payload) for each in items if each.message.payload != b"bad"]
    assert places == sorted(places)


def test_a_slow_server_gets_on(server: Server) -> None:
    """What it took within most of the time limit is acknowledged; the rest goes with the next batch."""

    def script(got: Got) -> bytes:
        threading.Event().wait(0.1)
        return answer()

    server.script = script
    sending = SendSettings(time_limit_s=0.5)

    answers = send(server.url, [item() for _ in range(50)], sending=sending)

    taken = answers.count(None)
    assert 1 <= taken < 10
    assert answers[:taken] == [None] * taken
    assert all(isinstance(each, Retry) and each.after_s == 0.0 for each in answers[taken:])


@pytest.mark.parametrize(
    ("secret", "quoted"),
    [
        ("Bearer abc.def", "token abc.def is unknown"),
        ("Basic YWRhOnB3LTE=", "no user ada:pw-1"),
        ("Basic YWRhOnB3LTE=", "wrong password pw-1"),
        ("Basic YWRhOnB3LTE=", "bad credentials YWRhOnB3LTE="),
        ("Basic %%%", "bad credentials %%%"),
        ("plain", "plain is no key"),
    ],
)
@pytest.mark.parametrize("where", ["body", "reason", "location"])
def test_no_part_of_a_secret_is_quoted(secret: str, quoted: str, where: str) -> None:
    """Wherever a server repeats it, and whatever of it."""
    texts: dict[str, Any] = {where: quoted.encode() if where == "body" else quoted}
    status = 302 if where == "location" else 403
    with pytest.raises(SinkRefused) as refused:
        meaning(Reply(status, **texts), 0.0, True, [secret])

    said = str(refused.value)
    assert "***" in said
    assert all(part not in said for part in (*secret.split()[-1:], "pw-1"))
