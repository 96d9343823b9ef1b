"""Where tables are, as options of the commands name it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from kinmqtt_metrics.errors import CommandError
from kinmqtt_metrics.tables import OWN


def tables_at(text: str) -> Path | str:
    """A folder of tables as it was named: of this machine, or, as text, by its URL."""
    scheme, colon, path = text.partition("://")
    if not colon:
        return Path(text)
    return Path(unquote(path)) if scheme == "file" else text


def local(tables: Path | str) -> Path:
    """Raises :class:`CommandError` for tables that are not on this machine."""
    if isinstance(tables, Path):
        return tables
    raise CommandError(
        f"{tables} is not a folder of this machine, and this command reads files: copy the tables first, without "
        f"their {OWN}, and name the copy (for S3: aws s3 sync {tables.replace('s3a:', 's3:', 1)} tables "
        f"--exclude '{OWN}/*'; with any file system of Hadoop: hadoop fs -get {tables} tables)"
    )
