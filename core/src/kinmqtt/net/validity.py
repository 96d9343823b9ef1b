"""Validity periods of certificates, to warn an operator before clients are refused."""

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
"""How long before the end of a certificate warnings begin."""

Words: TypeAlias = Callable[[int, str], tuple[str, str]]
"""Takes a certificate's number in the file and its subject; returns its description and what its end causes."""


@frozen(slots=True)
class Validity:
    """The validity period of one certificate."""

    what: str
    """Its description for people."""
    consequence: str
    """The consequence when it is invalid."""
    begins_at: float
    """Seconds since the epoch, UTC."""
    ends_at: float
    """Seconds since the epoch, UTC."""

    def problem(self, now: float) -> str | None:
        """Describe what is wrong at ``now`` (seconds since the epoch) or soon will be; ``None`` if nothing is."""
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
    """The validity periods of all certificates of one file."""

    each: tuple[Validity, ...] = ()
    unread: str | None = None
    """Why they are unknown."""

    def problems(self, now: float) -> list[str]:
        """Return a line for each certificate that is invalid at ``now``, or soon will be."""
        found = [] if self.unread is None else [self.unread]
        return found + [problem for one in self.each if (problem := one.problem(now)) is not None]


def of_chain(path: Path) -> Validities:
    """Return the validity periods of the broker's certificate and its intermediates."""
    return _read(
        path,
        lambda place, name: (
            (f"the certificate of {name}", "clients refuse it")
            if not place
            else (f"the certificate of {name}, number {place + 1} of the chain,", "clients refuse the chain")
        ),
    )


def of_authorities(path: Path) -> Validities:
    """Return the validity periods of the clients' authorities."""
    return _read(path, lambda place, name: (f"the authority {name}", "clients with its certificates are refused"))


def _read(path: Path, words: Words) -> Validities:
    try:
        certificates = load_pem_x509_certificates(path.read_bytes())
        each = tuple(_validity(path, number, one, words) for number, one in enumerate(certificates))
    except (OSError, ValueError) as error:
        # OpenSSL accepts certificates that this library does not parse.
        return Validities(unread=f"{path}: the expiry of its certificates is unknown: {error}")
    return Validities(each)


def _validity(path: Path, number: int, certificate: Certificate, words: Words) -> Validity:
    what, consequence = words(number, shown(certificate.subject.rfc4514_string()))
    begins_at, ends_at = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Validity(f"{path}: {what}", consequence, begins_at.timestamp(), ends_at.timestamp())


def _date(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def lines(validities: Sequence[tuple[str, Validities]], now: float) -> list[str]:
    """Return the problems of several files, each with the setting that names the file."""
    return [f"{place}: {problem}" for place, its in validities for problem in its.problems(now)]
