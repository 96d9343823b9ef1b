"""When certificates begin and end: what an operator should be told before clients are refused for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from attrs import frozen
from cryptography.x509 import Certificate, load_pem_x509_certificates

from kinmqtt.hooks.denial_log import shown

DAY_S: Final = 86_400.0

EARLY_S: Final = 14 * DAY_S
"""How long before its end a certificate is warned of."""

Words: TypeAlias = Callable[[int, str], tuple[str, str]]
"""Answers what a certificate is called and what its end brings, by its number in the file and its subject."""


@frozen(slots=True)
class Validity:
    """From when until when one certificate is good."""

    what: str
    """Which it is, for people."""
    consequence: str
    """What comes of it when it is not good."""
    begins_at: float
    """Seconds since the epoch, UTC."""
    ends_at: float
    """Seconds since the epoch, UTC."""

    def problem(self, now: float) -> str | None:
        """What is wrong with it at that moment (seconds since the epoch), or soon will be; ``None`` for nothing."""
        if now > self.ends_at:
            return f"{self.what} expired on {_date(self.ends_at)}: {self.consequence}; renew it and reload (SIGHUP)"
        if now < self.begins_at:
            return (
                f"{self.what} is not valid before {_date(self.begins_at)}: {self.consequence}; is this machine's "
                f"clock right? It says {_date(now)}"
            )
        left_s = self.ends_at - now
        if left_s <= EARLY_S:
            days = int(left_s // DAY_S)
            left = f"in {days} day{'s' if days > 1 else ''}" if days else "in less than a day"
            return f"{self.what} expires on {_date(self.ends_at)}, {left}: renew it and reload (SIGHUP)"
        return None


@frozen(slots=True)
class Validities:
    """Those of all certificates of one file."""

    each: tuple[Validity, ...] = ()
    unread: str | None = None
    """Why nothing is known of them."""

    def problems(self, now: float) -> list[str]:
        """A line for each certificate that is not good at that moment, or soon will not be."""
        found = [] if self.unread is None else [self.unread]
        return found + [problem for one in self.each if (problem := one.problem(now)) is not None]


def of_chain(path: Path) -> Validities:
    """Of the broker's own certificate and those between it and the root, which stand behind it."""
    return _read(
        path,
        lambda place, name: (
            (f"the certificate of {name}", "clients refuse it")
            if not place
            else (f"the certificate of {name}, number {place + 1} of the chain,", "clients refuse the chain")
        ),
    )


def of_authorities(path: Path) -> Validities:
    """Of the authorities whose certificates clients show."""
    return _read(path, lambda place, name: (f"the authority {name}", "clients with its certificates are refused"))


def _read(path: Path, words: Words) -> Validities:
    try:
        certificates = load_pem_x509_certificates(path.read_bytes())
        each = tuple(_validity(path, number, one, words) for number, one in enumerate(certificates))
    except (OSError, ValueError) as error:
        # OpenSSL takes some that this library does not.
        return Validities(unread=f"{path}: it can't be told when its certificates expire: {error}")
    return Validities(each)


def _validity(path: Path, number: int, certificate: Certificate, words: Words) -> Validity:
    what, consequence = words(number, shown(certificate.subject.rfc4514_string()))
    begins_at, ends_at = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Validity(f"{path}: {what}", consequence, begins_at.timestamp(), ends_at.timestamp())


def _date(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def lines(validities: Sequence[tuple[str, Validities]], now: float) -> list[str]:
    """The problems of several files, each behind the place in the settings that names the file."""
    return [f"{place}: {problem}" for place, its in validities for problem in its.problems(now)]
