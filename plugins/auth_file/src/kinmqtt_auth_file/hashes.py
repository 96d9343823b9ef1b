"""Password hashes in a file: Mosquitto's two kinds, and Argon2id."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from enum import Enum
from typing import Final

import attrs
from argon2.exceptions import VerificationError
from argon2.low_level import Type, hash_secret, verify_secret
from attrs import frozen

from kinmqtt_spi.settings import setting

SALT_BYTES: Final = 12
"""The salt's length in Mosquitto's kinds; Mosquitto accepts no other."""

SHA512_BYTES: Final = 64

MAX_ITERATIONS: Final = 10_000_000
"""Some seconds of work for each CONNECT; a higher number is probably a typing error."""

MAX_ARGON2_BYTES: Final = 1 << 30

PBKDF2_ITERATIONS: Final = 210_000
"""OWASP's for PBKDF2-HMAC-SHA512. Mosquitto's own tool writes 101, and its broker reads any number."""

ENDS_WITH_ZERO: Final = "the password ends with a zero byte, which not every hash distinguishes"

_ARGON2: Final = re.compile(
    r"\$argon2id\$v=19\$m=(0|[1-9][0-9]{0,7}),t=(0|[1-9][0-9]{0,7}),p=(0|[1-9][0-9]{0,7})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)"
)


class Kind(Enum):
    """The kinds of hashes, by their common names."""

    ARGON2ID = "argon2id"
    PBKDF2_SHA512 = "pbkdf2-sha512"
    SHA512 = "sha512"


@frozen(slots=True)
class Argon2Settings:
    """``[plugins.auth_file.argon2]``: the cost of a new Argon2id hash; the defaults are OWASP's."""

    time_cost: int = setting(2, help="passes over the memory", minimum=1, maximum=100)
    memory_bytes: int = setting(
        19 << 20,
        help="memory for each verification",
        unit="bytes",
        minimum=1 << 20,
        maximum=MAX_ARGON2_BYTES,
    )
    parallelism: int = setting(1, help="lanes, each of which is a thread", minimum=1, maximum=16)


OWASP: Final = Argon2Settings()


class PasswordHash(ABC):
    """The hash of one password. Its text is the form in the file."""

    kind: Kind

    @abstractmethod
    def verify(self, password: bytes) -> bool:
        """Whether this is the password. It is slow on purpose; the time only depends on the cost."""

    @abstractmethod
    def dummy(self) -> PasswordHash:
        """A hash that costs the same to verify and fits no password."""

    @property
    @abstractmethod
    def cost(self) -> tuple[object, ...]:
        """The parameters that determine how long a verification takes."""


@frozen(slots=True)
class Sha512(PasswordHash):
    """``$6$salt$hash``: one SHA-512 of the password and the salt. Fast to guess, so it is read but never written."""

    salt: bytes
    digest: bytes = attrs.field(repr=False)

    kind = Kind.SHA512

    def verify(self, password: bytes) -> bool:
        return hmac.compare_digest(hashlib.sha512(password + self.salt).digest(), self.digest)

    def dummy(self) -> Sha512:
        return Sha512(self.salt, secrets.token_bytes(SHA512_BYTES))

    @property
    def cost(self) -> tuple[object, ...]:
        return (self.kind,)

    def __str__(self) -> str:
        return f"$6${_encoded(self.salt)}${_encoded(self.digest)}"


@frozen(slots=True)
class Pbkdf2(PasswordHash):
    """``$7$iterations$salt$hash``: PBKDF2-HMAC-SHA512."""

    iterations: int
    salt: bytes
    digest: bytes = attrs.field(repr=False)

    kind = Kind.PBKDF2_SHA512

    @classmethod
    def of(cls, password: bytes, iterations: int = PBKDF2_ITERATIONS) -> Pbkdf2:
        """Hash a password with a new salt; raises ``ValueError`` if it ends with a zero byte."""
        if password.endswith(b"\0"):
            raise ValueError(ENDS_WITH_ZERO)
        salt = secrets.token_bytes(SALT_BYTES)
        return cls(iterations, salt, hashlib.pbkdf2_hmac("sha512", password, salt, iterations))

    def verify(self, password: bytes) -> bool:
        made = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations)
        # HMAC pads a short key with zero bytes, so a password with additional zero bytes has the same digest.
        return hmac.compare_digest(made, self.digest) and not password.endswith(b"\0")

    def dummy(self) -> Pbkdf2:
        return Pbkdf2(self.iterations, self.salt, secrets.token_bytes(SHA512_BYTES))

    @property
    def cost(self) -> tuple[object, ...]:
        return (self.kind, self.iterations)

    def __str__(self) -> str:
        return f"$7${self.iterations}${_encoded(self.salt)}${_encoded(self.digest)}"


@frozen(slots=True)
class Argon2id(PasswordHash):
    """``$argon2id$…``: a PHC string (RFC 9106), which Mosquitto 2.0 does not read."""

    text: str = attrs.field(repr=False)

    kind = Kind.ARGON2ID

    @classmethod
    def of(cls, password: bytes, settings: Argon2Settings = OWASP) -> Argon2id:
        """Hash a password with a new salt."""
        made = hash_secret(
            password,
            secrets.token_bytes(16),
            time_cost=settings.time_cost,
            # The algorithm needs at least eight blocks for each lane.
            memory_cost=max(settings.memory_bytes >> 10, 8 * settings.parallelism),
            parallelism=settings.parallelism,
            hash_len=32,
            type=Type.ID,
        )
        return cls(made.decode())

    @classmethod
    def costing(cls, settings: Argon2Settings = OWASP) -> Argon2id:
        """A hash of this cost that fits no password, made without computing one."""
        memory = max(settings.memory_bytes >> 10, 8 * settings.parallelism)
        salt, digest = _unpadded_base64(secrets.token_bytes(16)), _unpadded_base64(secrets.token_bytes(32))
        return cls(f"$argon2id$v=19$m={memory},t={settings.time_cost},p={settings.parallelism}${salt}${digest}")

    def verify(self, password: bytes) -> bool:
        try:
            return verify_secret(self.text.encode(), password, Type.ID)
        except VerificationError:  # a wrong password, or not enough memory
            return False

    def dummy(self) -> Argon2id:
        head, _, digest = self.text.rpartition("$")
        return Argon2id(f"{head}${_unpadded_base64(secrets.token_bytes(len(_unpadded(digest))))}")

    @property
    def cost(self) -> tuple[object, ...]:
        return (self.kind, self.text.split("$")[3])

    def __str__(self) -> str:
        return self.text


def parse_hash(text: str) -> PasswordHash:
    """Parse a hash in a file; raises ``ValueError``, whose text never contains the hash."""
    if text.startswith("$6$"):
        return _sha512(text.split("$")[2:])
    if text.startswith("$7$"):
        return _pbkdf2(text.split("$")[2:])
    if text.startswith("$argon2id$"):
        return _argon2id(text)
    if not text:
        raise ValueError("there is no password")
    if text.startswith("$"):
        raise ValueError("unknown kind of hash; the known ones are $6$, $7$ and $argon2id$")
    raise ValueError("the password is not hashed")


def _sha512(parts: list[str]) -> Sha512:
    if len(parts) != 2:
        raise ValueError("expected $6$salt$hash")
    return Sha512(_decoded("salt", parts[0]), _digest(parts[1]))


def _pbkdf2(parts: list[str]) -> Pbkdf2:
    if len(parts) != 3:
        raise ValueError("expected $7$iterations$salt$hash")
    if not re.fullmatch(r"[0-9]{1,9}", parts[0]) or not 1 <= int(parts[0]) <= MAX_ITERATIONS:
        raise ValueError(f"the iterations must be a number from 1 to {MAX_ITERATIONS}")
    return Pbkdf2(int(parts[0]), _decoded("salt", parts[1]), _digest(parts[2]))


def _argon2id(text: str) -> Argon2id:
    match = _ARGON2.fullmatch(text)
    if match is None:
        raise ValueError("expected $argon2id$v=19$m=…,t=…,p=…$salt$hash")
    memory, time_cost, parallelism = (int(match[group]) for group in (1, 2, 3))
    if not 1 <= parallelism <= 16 or not 1 <= time_cost <= 100:
        raise ValueError("t must be from 1 to 100 and p from 1 to 16")
    if not 8 * parallelism <= memory <= MAX_ARGON2_BYTES >> 10:
        raise ValueError(f"m must be from eight times p to {MAX_ARGON2_BYTES >> 10}")
    try:
        salt, digest = _unpadded(match[4]), _unpadded(match[5])
    except Base64Error:
        raise ValueError("its salt or hash is not base64") from None
    if len(salt) < 8 or not 12 <= len(digest) <= 256:
        raise ValueError("its salt must have at least 8 bytes and its hash 12 to 256")
    return Argon2id(text)


def _digest(text: str) -> bytes:
    digest = _decoded("hash", text)
    if len(digest) != SHA512_BYTES:
        raise ValueError(f"its hash has {len(digest)} bytes instead of {SHA512_BYTES}")
    return digest


def _decoded(what: str, text: str) -> bytes:
    try:
        decoded = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise ValueError(f"its {what} is not base64") from None
    if not decoded:
        raise ValueError(f"its {what} is empty")
    return decoded


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()


def _unpadded_base64(data: bytes) -> str:
    return _encoded(data).rstrip("=")


def _unpadded(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4), validate=True)
