"""The built-in plugins keep the contracts of their families, and what any plugin promises."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from kinmqtt.builtins.certificate import authenticate
from kinmqtt.builtins.scram import METHOD, Secret
from kinmqtt.hooks.discovery import builtin_candidates
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.services.cluster import ClusterBackend
from kinmqtt_spi.services.limiter import Resource, ResourceKind
from kinmqtt_spi.services.subscription import Subscriber, SubscriptionIndex
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.testing.authentication import AuthenticationCase, AuthenticatorContract, Exchange
from kinmqtt_spi.testing.build import client, connect_request, message, subscription
from kinmqtt_spi.testing.cluster import ClusterBackendContract
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.testing.hooks import Hooks
from kinmqtt_spi.testing.limiter import LimiterCase, LimiterContract
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract
from kinmqtt_spi.testing.subscription import SubscriptionIndexContract
from kinmqtt_spi.values import Address

BUILTINS = {candidate.name: candidate for candidate in builtin_candidates()}

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SECRET = str(Secret.of("pencil", SALT, 4096))
USERS = f"[users]\nuser = '{SECRET}'\n"

PUBLISH = Resource(ResourceKind.PUBLISH, "tcp:1883", "192.0.2.1", "client", "user")
CONNECT = Resource(ResourceKind.CONNECT, "tcp:1883", "192.0.2.1", "client", "user")


def configured(name: str, section: str = "", **more: Any) -> tuple[Any, BareContext]:
    """A built-in with the settings of a section, and its context."""
    plugin = BUILTINS[name].load()
    hooks = Hooks(plugin)
    settings = parse(hooks.call("settings_class"), Document.parse(section), ()) if section else None
    context = BareContext(name, settings, **more)
    if hooks.has("configure"):
        hooks.call("configure", context=context)
    return plugin, context


# Indexes and the cluster


class TestTrieIndex(SubscriptionIndexContract):
    """The trie."""

    @pytest.fixture
    def subscription_index(self) -> SubscriptionIndex:
        index: SubscriptionIndex = BUILTINS["trie"].load().subscription_index(BareContext())
        return index


class TestHashIndex(SubscriptionIndexContract):
    """The index for exact filters."""

    wildcards = False

    @pytest.fixture
    def subscription_index(self) -> SubscriptionIndex:
        index: SubscriptionIndex = BUILTINS["hash"].load().subscription_index(BareContext())
        return index


class TestSingleNodeBackend(ClusterBackendContract):
    """No cluster."""

    @pytest.fixture
    def cluster_backend(self) -> ClusterBackend:
        backend: ClusterBackend = BUILTINS["single_node"].load().cluster_backend()
        return backend


# Guards


class TestAnonymousAuthenticator(AuthenticatorContract):
    """Everybody."""

    passwords = False

    @pytest.fixture
    def authentication(self) -> AuthenticationCase:
        accepted = [connect_request("a"), connect_request("b", username="b", password=b"any-pass")]
        return AuthenticationCase(BUILTINS["anonymous"].load(), accepted)


class TestCertificateAuthenticator(AuthenticatorContract):
    """Whoever has shown a certificate."""

    passwords = False

    @pytest.fixture
    def authentication(self) -> AuthenticationCase:
        return AuthenticationCase(
            BUILTINS["certificate"].load(),
            accepted=[connect_request("a", certificate_subject="CN=a")],
            foreign=[connect_request("a"), connect_request("a", username="CN=a", password=b"CN=a")],
        )


class TestScramAuthenticator(AuthenticatorContract):
    """SCRAM, which takes part in exchanges alone."""

    passwords = False
    exchanges = True

    @pytest.fixture
    def authentication(self, clock: TurnableClock) -> AuthenticationCase:
        plugin, context = configured("scram", USERS, clock=clock)
        return AuthenticationCase(
            plugin,
            exchanged=[scram("user", "pencil")],
            exchanged_in_vain=[scram("user", "Pencil"), scram("nobody", "pencil")],
            context=context,
        )


def scram(user: str, password: str) -> Exchange:
    """A client's part of SCRAM-SHA-256."""
    bare = f"n={user},r=rOprNGfwEbeRWgbNEkqO"

    def final(data: bytes | None) -> bytes:
        server = (data or b"").decode()
        nonce, salt, iterations = (part[2:] for part in server.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b64decode(salt), int(iterations))
        key = hmac.digest(salted, b"Client Key", "sha256")
        without = f"c=biws,r={nonce}"
        signature = hmac.digest(hashlib.sha256(key).digest(), f"{bare},{server},{without}".encode(), "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without},p={b64encode(proof).decode()}".encode()

    return Exchange(METHOD, f"n,,{bare}".encode(), final)


RULES = """
[[rules]]
name = "publishes"
kind = "publish"
rate_per_s = 5.0
burst = 8.0

[[rules]]
name = "connects"
kind = "connect"
rate_per_s = 2.0
burst = 3.0
per = "address"
verdict = "reject"
"""


class TestRateLimitsOfPublishes(LimiterContract):
    """Built-in buckets that delay."""

    reloads = bounded = True
    bound = 100_000

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        plugin, _ = configured("rate_limits", RULES, clock=clock)
        unlimited = Resource(ResourceKind.SUBSCRIBE, "tcp:1883", "192.0.2.1", "client")
        same, own = [evolve(PUBLISH, address="192.0.2.9")], [evolve(PUBLISH, client_id="Client")]
        return LimiterCase(plugin, PUBLISH, 8, unlimited, 5.0, same, own)

    def reload(self, case: LimiterCase, drive: Driver) -> None:
        """The same rules again; it says that all buckets begin full then."""
        hooks = Hooks(case.plugin)
        settings = parse(hooks.call("settings_class"), Document.parse(RULES), ())
        assert drive(hooks.call("reload", settings=settings)) == ()

    def size(self, case: LimiterCase) -> int:
        return len(case.plugin._buckets)


class TestRateLimitsOfConnects(TestRateLimitsOfPublishes):
    """Built-in buckets that refuse."""

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        plugin, _ = configured("rate_limits", RULES, clock=clock)
        same, own = [evolve(CONNECT, client_id="other", username="other")], [evolve(CONNECT, address="192.0.2.10")]
        unlimited = Resource(ResourceKind.SUBSCRIBE, "tcp:1883", "192.0.2.1")
        return LimiterCase(plugin, CONNECT, 3, unlimited, 2.0, same, own)


# Any plugin's life


class Builtin(PluginContract):
    """A built-in without settings."""

    name: str
    section = ""
    changed: str | None = None
    refused: str | None = None

    @pytest.fixture
    def plugin(self) -> PluginCase:
        load: Callable[[], Any] = BUILTINS[self.name].load
        return PluginCase(load, self.section, self.changed, self.refused, self.name)


class TestAnonymous(Builtin):
    """Lets everybody in."""

    name = "anonymous"


class TestCertificate(Builtin):
    """Lets in who shows a certificate."""

    name = "certificate"

    def test_it_is_a_module(self, plugin: PluginCase) -> None:
        """A plugin may be a module, and is the same each time."""
        assert plugin.make().authenticate is authenticate


class TestHash(Builtin):
    """The exact index."""

    name = "hash"


class TestTrie(Builtin):
    """The default index."""

    name = "trie"


class TestMemory(Builtin):
    """The stores in memory."""

    name = "memory"


class TestSingleNode(Builtin):
    """No cluster."""

    name = "single_node"


class TestDirect(Builtin):
    """MessagePublisher to one client."""

    name = "direct"


class TestRateLimits(Builtin):
    """Token buckets."""

    name = "rate_limits"
    reloads = True
    section = RULES
    changed = RULES.replace("8.0", "1.0")

    def probe(self, plugin: Any) -> object:
        return [super().probe(plugin), plugin.acquire(PUBLISH, 2).verdict]


class TestBans(Builtin):
    """The black list."""

    name = "bans"
    reloads = True
    section = '[[entries]]\naddress = "192.0.2.0/24"'
    changed = '[[entries]]\naddress = "198.51.100.0/24"\nuntil = "2100-01-01T00:00:00Z"'

    def probe(self, plugin: Any) -> object:
        return [plugin.connection_opened(Address(host)) for host in ("192.0.2.1", "198.51.100.1")]


class TestScram(Builtin):
    """SCRAM."""

    name = "scram"
    reloads = refuses_settings = True
    section = USERS
    changed = USERS.replace("user =", "other =")
    refused = ""

    def probe(self, plugin: Any) -> object:
        return sorted(plugin._secrets)


class TestAutoSubscriptions(Builtin):
    """Subscriptions without asking."""

    name = "auto_subscriptions"
    reloads = True
    section = '[[subscriptions]]\nfilter = "to/${clientid}"'
    changed = '[[subscriptions]]\nfilter = "all/#"\nqos = 1'

    def probe(self, plugin: Any) -> object:
        return plugin.initial_subscriptions(client("c"))


class TestTopicRewrite(Builtin):
    """Other names for topics."""

    name = "topic_rewrite"
    reloads = True
    section = "[[rules]]\npattern = 'a/(.*)'\ntarget = 'b/$1'"
    changed = "[[rules]]\npattern = 'a/(.*)'\ntarget = 'c/$1'"

    def probe(self, plugin: Any) -> object:
        return plugin.publish_received(client("c"), message("a/x"))


class TestShareStrategy(Builtin):
    """Who of a group gets a message."""

    name = "share_strategy"
    reloads = True
    section = 'default = "hash_topic"'
    changed = 'default = "round_robin"\n[groups]\ng = "sticky"'

    def probe(self, plugin: Any) -> object:
        members = [Subscriber(name, subscription("a", share_group="h")) for name in "abc"]
        return plugin.choose_member("h", "a", members, message("a"))


class TestDelayed(Builtin):
    """Messages that wait."""

    name = "delayed"
    reloads = True
    section = "max_messages = 3"
    changed = "max_messages = 0"

    def context(self, case: PluginCase, settings: Any, **more: Any) -> BareContext:
        """Two messages wait already, of which one becomes due while the plugin runs."""
        context = super().context(case, settings, **more)
        for delay_s in (10, 600):
            waits = {"due": context.clock.now() + delay_s, "message": to_plain(message("late"))}
            context.values[f"{delay_s}"] = json.dumps(waits).encode()
        context.values["broken"] = b"{"
        return context

    def probe(self, plugin: Any) -> object:
        return type(plugin.publish_received(client("c"), message("$delayed/600/x")))
