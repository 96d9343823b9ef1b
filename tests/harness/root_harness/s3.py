"""An S3 server for tests: moto's, in a process of its own, which keeps objects in memory."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from xml.etree import ElementTree

from spi_harness.processes import Process, environment, free_port, wait_until

BUCKET: Final = "tables"

_SIGNED: Final = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""The server asks who somebody is, and believes it."""

_XML: Final = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class S3:
    """A server that runs, with one bucket."""

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = Process(command, env=environment() | {"AWS_DEFAULT_REGION": "us-east-1"})

    @property
    def conf(self) -> dict[str, str]:
        """Spark's settings for S3A."""
        return {
            "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{self.port}",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            # The server says "continue" to no client.
            "spark.hadoop.fs.s3a.connection.expect.continue": "false",
            "spark.hadoop.fs.s3a.access.key": "key",
            "spark.hadoop.fs.s3a.secret.key": "secret",
        }

    def start(self) -> None:
        """Wait until it answers, and make the bucket."""
        wait_until(self._answers, "the S3 server answers", 60.0)
        self.request("PUT", f"/{BUCKET}")

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Ask it; the status and what it said. ``If_None_Match="*"`` is a header."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()} | {"Authorization": _SIGNED}
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def keys(self, prefix: str = "") -> list[str]:
        """The names of all objects."""
        _, said = self.request("GET", f"/{BUCKET}?list-type=2&max-keys=1000&prefix={prefix}")
        listed = ElementTree.fromstring(said)
        assert listed.findtext(f"{_XML}IsTruncated") != "true"
        return [key.text or "" for key in listed.iter(f"{_XML}Key")]

    def get(self, key: str) -> bytes:
        """What is in an object."""
        status, content = self.request("GET", f"/{BUCKET}/{key}")
        assert status == 200, content
        return content

    def _answers(self) -> bool:
        assert self._process.is_running, f"the S3 server has ended:\n{self._process.output}"
        try:
            return self.request("GET", "/")[0] < 500
        except OSError:
            return False

    def end(self) -> None:
        """End it."""
        self._process.end()


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server, until the block ends."""
    server = S3()
    try:
        server.start()
        yield server
    finally:
        server.end()
