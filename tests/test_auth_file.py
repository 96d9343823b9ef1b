"""The plugin auth_file in a broker that runs: beside the real Mosquitto with the same files, and by itself."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import select
import signal
import socket
import subprocess
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from twisted.internet.defer import Deferred

from core_harness.brokers import BrokerProcess, run_command, running_broker
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Connect
from kinmqtt.settings import ListenerSettings
from kinmqtt.testing import BrokerHarness
from kinmqtt_auth_file import AuthFile
from kinmqtt_auth_file.hashes import Kind, Pbkdf2
from kinmqtt_auth_file.passwd import Passwd
from kinmqtt_auth_file.passwords import parse_passwords
from kinmqtt_spi import Client, hookimpl
from kinmqtt_spi.memory.authentication import StaticUsers
from kinmqtt_spi.services.authentication import Redirect
from root_harness.smallclient import SmallClient
from spi_harness.processes import Process, free_port, needed, wait_until

QUESTIONS = 1000
SEEDS = (1, 2, 3, 2011)

ADMIN, ADMIN_PASSWORD = "admin", b"the one who may"
USERS = ["ann", "bob", "carl v", "d/e", "%c", "ünal", "g+h", "i#", "nobody-yet", "$dollar"]
CLIENT_IDS = ["c1", "c2", "ann", "c/3", "c+4", "c#5", "%u", "$foo"]
LEVELS = ["a", "b", "c d", "", "ann", "bob", "c1", "%u", "%c", "d"]
ACTIONS = ["connect", "publish", "publish", "publish", "subscribe", "receive", "receive", "will", "retained", "sys"]
OWN = ["$foo", "$SYS", "$SYSTEM", "$share", "$shared", "$"]
"""How topics begin that a '#' does not match."""


# The files


def written_by_mosquitto(path: Path, users: dict[str, bytes], chance: random.Random) -> None:
    """A password file by mosquitto_passwd, of both kinds that it knows, with what people put between its lines."""
    program = needed("mosquitto_passwd", "mosquitto")
    path.touch(0o600)
    for user, password in users.items():
        kind = chance.choice(["sha512", "sha512-pbkdf2"])
        subprocess.run(
            [program, "-H", kind, "-b", str(path), user, password.decode()],
            check=True,
            capture_output=True,
            timeout=20,
        )
    lines = path.read_bytes().splitlines(keepends=True)
    between = [b"# a comment\n", b"\n", b"   \n", b"#ann:not a line\n"]
    content = b"".join(chance.choice([b"", *between]) + line for line in lines)
    # Of two lines for one user the last holds.
    path.write_bytes(
        by_hand("ann", b"an older password").encode() + b"\r\n" + content + by_hand("zoe", b"z").encode()
    )


def by_hand(user: str, password: bytes) -> str:
    """A line such as mosquitto_passwd writes."""
    salt = b"twelve bytes"
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, 200)
    return f" {user} :$7$200${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}  "


def random_acl(chance: random.Random) -> str:
    """An access control list in which everything occurs, and rules often meet."""
    lines = [
        "# by chance",
        f"user {ADMIN}",
        "topic read $SYS/#",
        "topic readwrite #",
        "topic readwrite $foo/#",
        "topic readwrite $/#",
    ]
    for user in [None, *USERS[:-2], None, "ann"]:
        block = [] if user is None else [f"user{' ' * chance.randint(1, 3)}{user}"]
        block += [
            rule(chance, chance.choice(["topic", "topic", "topic", "pattern"])) for _ in range(chance.randint(2, 7))
        ]
        block += [f"{chance.choice(['topic', 'pattern'])} readwrite {own}/#" for own in OWN if chance.random() < 0.3]
        if user is None and len(lines) == 6:
            lines = [*block, "", *lines]  # before any user: for those who have no name
        elif user is not None:
            lines += [*block, chance.choice(["", "#", "# topic readwrite #"])]
    return "".join(line + chance.choice(["\n", "\n", "  \n", "\r\n"]) for line in lines)


def rule(chance: random.Random, word: str) -> str:
    """One line of an access control list."""
    levels = random_topic(chance).split("/")
    for place in range(len(levels)):
        if chance.random() < 0.25:
            levels[place] = "+"
        elif word == "pattern" and chance.random() < 0.4:
            levels[place] = chance.choice(["%u", "%c", "%u%c", "x%u"])
    if chance.random() < 0.3:
        levels = [*levels[: chance.randint(0, len(levels))], "#"]
    filter = "/".join(levels)
    access = chance.choice(["read", "write", "readwrite", "deny", "deny", ""])
    if not access and (" " in filter or not filter.strip()):
        access = "readwrite"
    if filter.endswith(" ") or filter.startswith(" ") or not filter:
        filter = f"a{filter}a"
    return f"{word} {access}{' ' * chance.randint(1, 2)}{filter}".replace("  ", " ", 1)


def random_topic(chance: random.Random) -> str:
    """A topic; few different ones, so that rules meet them."""
    levels = [chance.choice(LEVELS) for _ in range(chance.choice([1, 2, 2, 3]))]
    if chance.random() < 0.15:
        levels = [chance.choice(OWN), *levels]
    topic = "/".join(levels)
    return topic if topic.strip() else "a/" + topic


# The questions


class Question(NamedTuple):
    """What is asked of both brokers."""

    action: str
    user: str | None
    password: bytes | None
    client_id: str
    topic: str
    filter: str


def random_question(chance: random.Random, users: dict[str, bytes]) -> Question:
    """One question; most are asked with the right password."""
    action = chance.choice(ACTIONS)
    # An empty name is none to Mosquitto.
    user = chance.choice([None, None, "", *users])
    password = users[user] if user else None
    if action == "connect":
        user = chance.choice([user, user, "stranger", "", "ANN"])
        wrong = [b"", b"wrong", None, *users.values(), b"an older password"]
        password = chance.choice([password, password, chance.choice(wrong)])
        if user is None:
            password = None
    topic = random_topic(chance)
    while (action in ("receive", "retained") and topic.startswith(("$SYS", "$sh", "$/"))) or (
        # kinmqtt itself refuses these before it asks the plugin: test_acl.py has what the plugin says of them.
        action in ("publish", "will") and topic.split("/")[0] in ("$SYS", "$share")
    ):
        topic = random_topic(chance)  # nobody could publish there
    client_id = chance.choice(CLIENT_IDS)
    while topic.startswith("$") and "$" in client_id + (user or ""):
        # By a pattern that begins with its name Mosquitto would give it topics that begin with $.
        client_id, user = chance.choice(CLIENT_IDS), None
        password = None
    filters = [topic, "#" if not topic.startswith("$") else topic.split("/")[0] + "/#"]
    if topic.startswith("$share/"):
        filters = ["#"]  # Mosquitto takes shared subscriptions that are none.
    if action == "subscribe":
        filters += ["+/+", "$share/g/" + topic, "$SYS/#"]
    return Question(action, user, password, client_id, topic, chance.choice(filters))


class Asked:
    """A broker that is asked, with an administrator who publishes and listens there."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._admin = SmallClient(port, "the-admin", ADMIN, ADMIN_PASSWORD)
        self._observer = SmallClient(port, "the-observer", ADMIN, ADMIN_PASSWORD)
        assert (self._admin.connack, self._observer.connack) == (0, 0)
        for filter in ("#", "$foo/#", "$/#"):
            assert self._observer.subscribe(filter) == 0
        assert self._admin.subscribe("$SYS/broker/version") == 0
        # What a broker says of itself is there once it has said it for the first time.
        wait_until(self._admin.received, "a message below $SYS")

    def close(self) -> None:
        """Disconnect."""
        self._admin.close()
        self._observer.close()

    def ask(self, question: Question) -> object:
        """The answer."""
        will = (question.topic, b"will") if question.action == "will" else None
        with SmallClient(self._port, question.client_id, question.user, question.password, will=will) as client:
            if question.action == "connect":
                return client.connack == 0
            assert client.connack == 0, f"connack {client.connack:#x}"
            answer: object = getattr(self, f"_{question.action}")(client, question)
            return answer

    def _publish(self, client: SmallClient, question: Question) -> object:
        reason = client.publish(question.topic, b"question")
        assert reason in (0x00, 0x10, 0x87), f"puback {reason:#x}"
        arrived = (question.topic, b"question") in self._observer.received()
        assert not arrived or reason != 0x87
        return reason != 0x87, arrived

    def _subscribe(self, client: SmallClient, question: Question) -> object:
        return client.subscribe(question.filter)

    def _receive(self, client: SmallClient, question: Question) -> object:
        assert client.subscribe(question.filter) == 0
        assert self._admin.publish(question.topic, b"news") != 0x87
        return (question.topic, b"news") in client.received()

    def _retained(self, client: SmallClient, question: Question) -> object:
        assert self._admin.publish(question.topic, b"kept", retain=True) != 0x87
        assert client.subscribe(question.filter) == 0
        answer = (question.topic, b"kept") in client.received()
        self._admin.publish(question.topic, b"", retain=True)
        return answer

    def _sys(self, client: SmallClient, question: Question) -> object:
        assert client.subscribe("$SYS/broker/version") == 0
        return bool(client.received())

    def _will(self, client: SmallClient, question: Question) -> object:
        client.leave_with_will()
        return (question.topic, b"will") in self._observer.received()


@contextmanager
def asked(port: int) -> Iterator[Asked]:
    """A broker that is asked."""
    broker = Asked(port)
    try:
        yield broker
    finally:
        broker.close()


@contextmanager
def running_mosquitto(folder: Path) -> Iterator[int]:
    """The port of a Mosquitto with the files in a folder."""
    port = free_port()
    settings = folder / "mosquitto.conf"
    settings.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nuser root\n"
        "log_dest stderr\nlog_type all\nset_tcp_nodelay true\n"
        f"password_file {folder / 'passwords'}\nacl_file {folder / 'acl'}\n",
        encoding="utf-8",
    )
    mosquitto = Process([needed("mosquitto", "mosquitto"), "-c", str(settings)])
    try:
        mosquitto.wait_for_line(r"mosquitto version .* running")
        yield port
    finally:
        mosquitto.end()


@contextmanager
def running_with_files(folder: Path, *arguments: str, extra: str = "") -> Iterator[BrokerProcess]:
    """Our broker with the files in a folder."""
    settings = folder / "kinmqtt.toml"
    files = "".join(
        f'{key} = "{folder / name}"\n'
        for key, name in (("password_file", "passwords"), ("acl_file", "acl"))
        if (folder / name).exists()
    )
    text = f"[broker]\nsys_interval_s = 0.2\n[plugins.auth_file]\n{files}{extra}"
    settings.write_text(text, encoding="utf-8")
    with running_broker("-c", str(settings), *arguments) as broker:
        yield broker


def test_it_runs_beside_the_embedded_store(tmp_path: Path) -> None:
    """As it does for whoever names no other store: both are in one broker with all that each of them shows."""
    (tmp_path / "passwords").write_text(f"ann:{Pbkdf2.of(b'secret', 10)}\n", encoding="utf-8")

    with running_with_files(tmp_path, "--data", str(tmp_path / "data")) as broker:
        right, wrong = (connack(broker.port, "ann", password) for password in (b"secret", b"secretx"))

    assert (right, wrong) == (0, 0x86)


@pytest.mark.interop
@pytest.mark.parametrize("seed", SEEDS)
def test_it_answers_as_mosquitto_does(tmp_path: Path, seed: int) -> None:
    """The same files, as they are, in both brokers: a thousand questions by chance have the same answers."""
    chance = random.Random(seed)
    users = {user: f"password of {user}".encode() for user in USERS} | {ADMIN: ADMIN_PASSWORD}
    written_by_mosquitto(tmp_path / "passwords", users, chance)
    users["zoe"] = b"z"
    (tmp_path / "acl").write_bytes(random_acl(chance).encode())
    questions = [random_question(chance, users) for _ in range(QUESTIONS)]

    # Hundreds of wrong passwords are wanted here, one after the other.
    hasty = "failure_pause_s = 0\n"
    with (
        running_mosquitto(tmp_path) as port,
        running_with_files(tmp_path, "--allow-anonymous", extra=hasty) as broker,
    ):
        with asked(port) as theirs, asked(broker.port) as ours:
            answers = [(question, theirs.ask(question), ours.ask(question)) for question in questions]

    counts = Counter((question.action, their in (True, (True, True))) for question, their, _ in answers)
    counts.update(
        ("subscribe", True) for question, their, _ in answers if (question.action, their) == ("subscribe", 0)
    )
    print(*sorted(counts.items()), sep="\n")
    different = [f"{question}: {their}, and ours is {our}" for question, their, our in answers if their != our]
    assert not different, "\n".join(different)
    for action in {*ACTIONS} - {"subscribe"}:  # which both grant, always
        assert min(counts[action, True], counts[action, False]) >= 10, f"{action} asks too little: {counts}"


# The tools


def passwd(*arguments: str, piped: bytes) -> int:
    """Run `kinmqtt passwd` as the broker's command does, with this on standard input."""
    command = Passwd(standard_input=lambda: io.BytesIO(piped))
    parser = ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([*arguments, "--password-stdin"]))


@pytest.mark.interop
def test_mosquitto_reads_what_passwd_writes(tmp_path: Path) -> None:
    """With `--hash pbkdf2-sha512`, whatever the name and the password are."""
    people = {"ann": b"secret", "carl v": "pässwörd: $7$ \\".encode(), "ünal": b"x" * 300}
    file = tmp_path / "passwords"
    file.touch()
    for user, password in people.items():
        assert passwd(str(file), user, "--hash", "pbkdf2-sha512", "--iterations", "1000", piped=password) == 0
    (tmp_path / "acl").write_text("topic a\n", encoding="utf-8")

    with running_mosquitto(tmp_path) as port:
        right = [connack(port, user, password) for user, password in people.items()]
        wrong = [connack(port, user, password + b"x") for user, password in people.items()]

    assert (right, wrong) == ([0, 0, 0], [0x87, 0x87, 0x87])


@pytest.mark.interop
def test_both_tools_work_on_one_file(tmp_path: Path) -> None:
    """Mosquitto's leaves our hashes as they are, ours leaves Mosquitto's, and each changes the other's."""
    theirs = needed("mosquitto_passwd", "mosquitto")
    file = tmp_path / "passwords"

    passwd(str(file), "ann", "--create", piped=b"1")
    for user, password in (("bob", "2"), ("carl", "3")):
        subprocess.run([theirs, "-b", str(file), user, password], check=True, capture_output=True, timeout=20)
    passwd(str(file), "carl", piped=b"4")
    users = parse_passwords(file.read_bytes(), "passwords").users

    assert [hash.kind for hash in users.values()] == [Kind.ARGON2ID, Kind.PBKDF2_SHA512, Kind.ARGON2ID]
    assert [users["ann"].verify(b"1"), users["bob"].verify(b"2"), users["carl"].verify(b"4")] == [True] * 3


@pytest.mark.interop
def test_plain_passwords_are_hashed_as_mosquitto_does(tmp_path: Path) -> None:
    """`--hash-plain` takes for the password what `mosquitto_passwd -U` takes for it."""
    plain = "ann:secret\nbob:with space\ncarl: in front\ndora:behind \neve:$dollar\n"
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text(plain, encoding="utf-8")
    theirs.write_text(plain, encoding="utf-8")

    passwd(str(ours), "--hash-plain", piped=b"")
    subprocess.run([needed("mosquitto_passwd", "mosquitto"), "-U", str(theirs)], check=True, timeout=20)
    files = [parse_passwords(path.read_bytes(), path.name).users for path in (ours, theirs)]

    guesses = [b"secret", b"with space", b" in front", b"in front", b"behind ", b"behind", b"$dollar"]
    found = [{user: [g for g in guesses if hash.verify(g)] for user, hash in users.items()} for users in files]
    assert found[0] == found[1]
    assert all(found[0].values())


# By itself


ANN = "ann:" + by_hand("ann", b"secret").strip().partition(":")[2]
BOB = "bob:" + by_hand("bob", b"hunter2").strip().partition(":")[2]


def connack(port: int, user: str | None, password: bytes | None) -> int:
    """How a CONNECT is answered."""
    with SmallClient(port, "at-the-door", user, password) as client:
        return client.connack


def test_a_password_decides_who_comes_in(tmp_path: Path) -> None:
    """The right one lets in, also a second time; all else is refused with 0x86, and who names nobody with 0x87."""
    (tmp_path / "passwords").write_text(f"{ANN}\n", encoding="utf-8")

    with running_with_files(tmp_path) as broker:
        answers = [
            connack(broker.port, user, password)
            for user, password in (
                ("ann", b"secret"),
                ("ann", b"secret"),
                ("ann", b"Secret"),
                ("ann", None),
                ("bob", b"secret"),
                (None, None),
            )
        ]

    assert answers == [0, 0, 0x86, 0x86, 0x86, 0x87]


@contextmanager
def flooding(port: int, addresses: Sequence[str], connections: int) -> Iterator[Sequence[socket.socket]]:
    """So many connections from each address, each with a wrong password in its CONNECT; nobody reads the answers."""
    packet = encode(Connect(V5, "", True, 0, username="ann", password=b"wrong"), V5)
    with ExitStack() as stack:
        sockets = []
        for address in list(addresses) * connections:
            each = socket.create_connection(("127.0.0.1", port), 20, (address, 0))
            sockets.append(stack.enter_context(each))
            each.sendall(packet)
        yield sockets


def answered(sockets: Sequence[socket.socket]) -> Counter[int]:
    """The reason codes that are there by now, by how many have them."""
    readable, _, _ = select.select(sockets, [], [], 0)
    heads = [each.recv(4, socket.MSG_PEEK) for each in readable]
    return Counter(head[3] for head in heads if len(head) == 4)


def test_wrong_passwords_from_elsewhere_keep_nobody_out(tmp_path: Path) -> None:
    """Six addresses ask for more than there are places: others log in, and who is unknown is refused as always."""
    (tmp_path / "passwords").write_text(f"ann:{Pbkdf2.of(b'secret', 200_000)}\n", encoding="utf-8")
    attackers = [f"127.0.0.{number}" for number in range(11, 17)]

    with running_with_files(tmp_path) as broker, flooding(broker.port, attackers, 60) as sockets:
        wait_until(lambda: answered(sockets)[0x89] >= 100, "there are still places for attackers")
        logins = []
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            with SmallClient(broker.port, "bystander", "ann", b"secret", source=source) as client:
                logins.append(client.connack)
            logins.append(stranger(broker.port, source))
        assert logins == [0, 0x86] * 3
        [line] = broker.wait_for_line("logins are refused because the server is busy")

    assert "of at most 200" in line


def stranger(port: int, source: str) -> int:
    """How a CONNECT of an unknown user is answered."""
    with SmallClient(port, "stranger", "nobody-yet", b"secret", source=source) as client:
        return client.connack


def test_an_address_that_had_wrong_passwords_still_logs_in(tmp_path: Path) -> None:
    """It waits, and is never locked out; then all is well."""
    (tmp_path / "passwords").write_text(f"{ANN}\n", encoding="utf-8")

    with running_with_files(tmp_path) as broker:
        answers = [connack(broker.port, "ann", b"wrong") for _ in range(8)]
        answers += [connack(broker.port, "ann", b"secret") for _ in range(2)]
        [line] = broker.wait_for_line("wrong passwords in a row")

    assert answers == [0x86] * 8 + [0] * 2
    assert "6 wrong passwords in a row from 127.0.0.1: logins from there are delayed by 0.25 s after each" in line


def test_a_changed_file_is_taken_while_the_broker_runs(tmp_path: Path) -> None:
    """A new user comes in, a new rule holds for who is connected, and a broken file changes nothing."""
    (tmp_path / "passwords").write_text(f"{ANN}\n", encoding="utf-8")
    (tmp_path / "acl").write_text("user ann\ntopic write a\n", encoding="utf-8")

    with running_with_files(tmp_path, extra='watch_s = "20 ms"\n') as broker:
        with SmallClient(broker.port, "c", "ann", b"secret") as client:
            before = [client.publish(topic, b"x") for topic in ("a", "b")]
            (tmp_path / "acl").write_text("user ann\ntopic write b\n", encoding="utf-8")
            (tmp_path / "passwords").write_text(f"{ANN}\n{BOB}\n", encoding="utf-8")
            broker.wait_for_line("2 users and 1 rule read from")
            after = [client.publish(topic, b"x") for topic in ("a", "b")]
            bob = connack(broker.port, "bob", b"hunter2")
            (tmp_path / "acl").write_text("user ann\ntopik write b\n", encoding="utf-8")
            [told] = broker.wait_for_line("the old contents stay in use")
            broken = [client.publish(topic, b"x") for topic in ("a", "b")]
            (tmp_path / "acl").write_text("user ann\ntopic write a\ntopic write b\n", encoding="utf-8")
            broker.wait_for_line("2 users and 2 rules read from")
            mended = [client.publish(topic, b"x") for topic in ("a", "b")]

    refused, nobody_listens = 0x87, 0x10
    assert before == [nobody_listens, refused]
    assert after == broken == [refused, nobody_listens]
    assert mended == [nobody_listens, nobody_listens]
    assert bob == 0
    assert f"{tmp_path / 'acl'}:2: a line must begin with user, topic or pattern, not with 'topik'" in told


def test_sighup_reads_the_files(tmp_path: Path) -> None:
    """Where nothing looks for changes a reload takes them, and the clients of a removed user are sent away."""
    (tmp_path / "passwords").write_text(f"{ANN}\n{BOB}\n", encoding="utf-8")

    with running_with_files(tmp_path, extra="watch_s = 0\ndisconnect_removed = true\n") as broker:
        with (
            SmallClient(broker.port, "a", "ann", b"secret") as ann,
            SmallClient(broker.port, "b", "bob", b"hunter2") as bob,
        ):
            (tmp_path / "passwords").write_text(f"{ANN}\n", encoding="utf-8")
            broker.signal(signal.SIGHUP)
            bob.wait_for_end()
            still = ann.publish("a", b"x")
            again = connack(broker.port, "bob", b"hunter2")

    assert still == 0x10
    assert again == 0x86


def test_without_an_acl_file_nothing_is_refused(tmp_path: Path) -> None:
    """Only a password file: the plugin abstains from what clients do."""
    (tmp_path / "passwords").write_text(f"{ANN}\n", encoding="utf-8")

    with running_with_files(tmp_path) as broker:
        with SmallClient(broker.port, "c", "ann", b"secret") as client:
            client.subscribe("#")
            client.publish("a", b"x")
            received = client.received()

    assert received == [("a", b"x")]


def test_a_denied_will_refuses_the_client_where_that_is_asked_for(tmp_path: Path) -> None:
    """Instead of being dropped when it is due."""
    (tmp_path / "acl").write_text("topic write a\n", encoding="utf-8")

    with running_with_files(tmp_path, "--allow-anonymous", extra='denied_wills = "refuse"\n') as broker:
        with SmallClient(broker.port, "c", will=("b", b"x")) as client:
            refused = client.connack
        with SmallClient(broker.port, "c", will=("a", b"x")) as client:
            let_in = client.connack

    assert (refused, let_in) == (0x87, 0)


def checked(folder: Path, section: str) -> str:
    """What `kinmqtt check` says of a section that is wrong."""
    (folder / "kinmqtt.toml").write_text(f"[plugins.auth_file]\n{section}\n", encoding="utf-8")
    done = run_command("check", "-c", "kinmqtt.toml", cwd=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


def test_check_tells_what_is_wrong_with_the_files(tmp_path: Path) -> None:
    """Every line, with what to do about it, before anything starts; paths are relative to where it was started."""
    (tmp_path / "passwords").write_text(f"{ANN}\nbob:hunter2\n:\n", encoding="utf-8")
    (tmp_path / "acl").write_text("topic wirte a\n", encoding="utf-8")

    said = checked(tmp_path, 'password_file = "passwords"\nacl_file = "acl"')

    assert said.splitlines() == [
        f"kinmqtt: {tmp_path}/passwords:2: user 'bob': the password is not hashed; `kinmqtt passwd --hash-plain` "
        "hashes such lines",
        f"kinmqtt: {tmp_path}/passwords:3: the user name is empty",
        f"kinmqtt: {tmp_path}/acl:1: 'wirte' is not an access, which is read, write, readwrite or deny; a topic "
        "that contains a space needs one in front",
    ]
    assert "hunter2" not in said


def test_check_tells_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A guard whose list is missing does not start; file, line and key say where it is named."""
    assert checked(tmp_path, 'acl_file = "acl"') == (
        "kinmqtt: kinmqtt.toml:2:12: plugins.auth_file.acl_file: acl: there is no such file; a relative path starts "
        f"at the working directory, {tmp_path}\n"
    )


def test_a_section_without_files_is_refused(tmp_path: Path) -> None:
    """Named in the settings and not configured: the broker says so and does not start."""
    said = checked(tmp_path, "watch_s = 1")

    assert "plugins.auth_file has neither password_file nor acl_file" in said


class SlowRedirect:
    """A plugin that takes its time to say that a client may stay here."""

    def __init__(self) -> None:
        self.answers: list[Deferred[None]] = []

    @hookimpl
    def choose_server(self, client: Client, redirect: Redirect | None) -> Deferred[None]:
        """To be answered by the test."""
        self.answers.append(Deferred())
        return self.answers[-1]


@pytest.mark.parametrize(("left", "stays"), [(f"{BOB}\n", False), (f"{ANN}\n", True)])
def test_who_is_removed_while_connecting_is_sent_away(tmp_path: Path, left: str, stays: bool) -> None:
    """A client that another plugin keeps waiting slips past no change of the file; others go as well."""
    slow, passwords = SlowRedirect(), tmp_path / "passwords"
    passwords.write_text(f"{ANN}\n{BOB}\n", encoding="utf-8")
    config = f'[plugins.auth_file]\npassword_file = "{passwords}"\ndisconnect_removed = true\nwatch_s = 1\n'
    scene = BrokerHarness(plugins={"auth_file": AuthFile(), "slow": slow}, config=config)
    quick = scene.connect("quick", username="ann", password=b"secret")
    slow.answers[0].callback(None)
    scene.settle()
    waiting = scene.connect("waiting", username="ann", password=b"secret")

    passwords.write_text(left, encoding="utf-8")
    for _ in range(3):
        scene.advance(1)
    slow.answers[1].callback(None)
    scene.settle()
    for client in (quick, waiting):
        client.collect()

    assert len(slow.answers) == 2
    assert [client.closed for client in (quick, waiting)] == [not stays] * 2


def house_with_client_ids(folder: Path, *patterns: str) -> BrokerHarness:
    """A broker with users ann and bob, who may have the client ids of these patterns; and another authenticator."""
    passwords = folder / "passwords"
    passwords.write_text(f"{ANN}\n{BOB}\n", encoding="utf-8")
    config = f'[plugins.auth_file]\npassword_file = "{passwords}"\nclient_ids = {[*patterns]!r}\n'
    users = StaticUsers({"ann": b"other", "zoe": b"other"})
    listeners = {
        "files": ListenerSettings(endpoint="1", authenticators=("auth_file",)),
        "users": ListenerSettings(endpoint="2", authenticators=("users",)),
        "open": ListenerSettings(endpoint="3", authenticators=("anonymous",)),
    }
    return BrokerHarness(plugins={"auth_file": AuthFile(), "users": users}, config=config, listeners=listeners)


def comes(
    house: BrokerHarness, listener: str, client_id: str, user: str | None, password: bytes | None, version: int = 5
) -> int:
    """The reason code with which a client is answered."""
    peer = house.open(version, listener=listener)
    peer.send(Connect(version, client_id, username=user, password=password))
    return int(peer.connack.reason)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_user_has_its_client_ids_by_whichever_authenticator(tmp_path: Path, version: int) -> None:
    """By password, by another plugin, or by none; the broker's own choice is allowed by name (section 3.1.3.1)."""
    house = house_with_client_ids(tmp_path, "%u-*", "auto-*")

    assert comes(house, "files", "ann-1", "ann", b"secret", version) == 0
    assert comes(house, "files", "bob-1", "ann", b"secret", version) == 0x85
    assert comes(house, "users", "zoe-1", "zoe", b"other", version) == 0
    assert comes(house, "users", "ann-2", "zoe", b"other", version) == 0x85
    assert comes(house, "open", "ann-3", "ann", None, version) == 0x85
    assert comes(house, "open", "auto-x", "ann", None, version) == 0
    if version > 3:
        assert comes(house, "files", "", "ann", b"secret", version) == 0


def test_the_same_name_is_the_same_user_by_whichever_authenticator(tmp_path: Path) -> None:
    """Ann takes over her own session at another listener; nobody takes it by her name alone."""
    house = house_with_client_ids(tmp_path, "*")
    assert comes(house, "files", "pump", "ann", b"secret") == 0

    assert comes(house, "open", "pump", "ann", None) == 0x85
    assert comes(house, "users", "pump", "zoe", b"other") == 0x85
    assert not house.peers[0].closed
    assert comes(house, "users", "pump", "ann", b"other") == 0
    assert house.peers[0].closed
