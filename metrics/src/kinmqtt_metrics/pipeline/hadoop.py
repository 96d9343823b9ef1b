"""A folder on any file system that Hadoop speaks, by Spark's Java process: S3, HDFS, Azure, Google's and others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from kinmqtt_metrics.spark import innermost, location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
"""Has the store itself look whether an object is there, when it is written. Without it S3A looks before."""

_CREATES_AT_ONCE: Final = ("gs",)
"""Schemes of file systems where a file that is created without that is there when it is whole, if there was none."""


class HadoopError(Exception):
    """A file system has refused something, or does not answer; the text says what Java said."""


class HadoopFolder:
    """A folder, by its URL; names are below it. All raise :class:`HadoopError`."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url.rstrip("/")
        jvm: Any = spark.sparkContext._jvm
        self._hadoop = jvm.org.apache.hadoop.fs
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()
        self._fs = self._call(lambda: self._path("").getFileSystem(self._conf))
        self._is_conditional = bool(self._call(lambda: self._fs.hasPathCapability(self._path(""), _CONDITIONAL)))
        scheme = self._fs.getScheme()
        self._is_at_once = self._is_conditional or scheme in _CREATES_AT_ONCE
        if scheme == "s3a" and not self._is_conditional:
            raise HadoopError(
                f"{self.url}: S3A's conditional writes are off or not known: hadoop-aws 3.4.2 or later, and "
                "fs.s3a.create.conditional.enabled"
            )

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(f"{self.url}/{name}" if name else self.url)

    def _call(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:
            raise HadoopError(f"{self.url}: {innermost(error)}") from error

    def names(self, folder: str) -> list[str]:
        """What is in a folder, in order, without names that begin with a dot; nothing where it is not there."""

        def listed() -> list[str]:
            path = self._path(folder)
            try:
                found = (each.getPath().getName() for each in self._fs.listStatus(path))
                return sorted(name for name in found if name[:1] != ".")
            except Exception as error:
                if _is_missing(error):
                    return []
                raise

        found: list[str] = self._call(listed)
        return found

    def exists(self, name: str) -> bool:
        """Whether a file or folder is there."""
        return bool(self._call(lambda: self._fs.exists(self._path(name))))

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with this content, if there is none of this name; whether it was created.

        Of several who try at once one succeeds. Who can't know, because the answer got lost, must look. Where files
        are there before they are whole, as on HDFS, it is renamed: there a rename replaces nothing.
        """
        try:
            if self._is_at_once:
                self._write(name, content)
            else:
                folder, slash, last = name.rpartition("/")
                beside = f"{folder}{slash}.{last}-{uuid4().hex}"
                self._write(beside, content)
                if not self._fs.rename(self._path(beside), self._path(name)):
                    self.remove(beside)
                    return False
        except Exception as error:
            if self.exists(name):
                return False
            raise HadoopError(f"{self.url}/{name}: {innermost(error)}") from error
        return True

    def _write(self, name: str, content: bytes) -> None:
        builder = self._fs.createFile(self._path(name)).overwrite(False).recursive()
        if self._is_conditional:
            builder = builder.must(_CONDITIONAL, True)
        stream = builder.build()
        try:
            stream.write(content)
        finally:
            stream.close()

    def put(self, source: Path, name: str) -> None:
        """Copy a file of this machine there."""
        local = self._hadoop.Path(location(source))
        copy = self._hadoop.FileUtil.copy
        self._call(
            lambda: copy(local.getFileSystem(self._conf), local, self._fs, self._path(name), False, True, self._conf)
        )

    def get(self, name: str, target: Path) -> None:
        """Copy a file from there, without a checksum beside it."""
        local = self._hadoop.Path(location(target))
        self._call(lambda: self._fs.copyToLocalFile(False, self._path(name), local, True))

    def move(self, name: str, target: str) -> None:
        """Give a file its last name; again, if that was cut off in between. What is moved is whole, or not there.

        A file that is not there was moved before; its target may be gone since, merged or deleted by whoever looks
        after the tables. Object stores copy, then delete.
        """
        if not self.exists(name):
            return
        if self.exists(target):
            self.remove(name)
            return
        self._rename(name, target)

    def _rename(self, name: str, target: str) -> None:
        self._call(lambda: self._fs.mkdirs(self._path(target).getParent()))
        if not self._call(lambda: self._fs.rename(self._path(name), self._path(target))):
            raise HadoopError(f"{self.url}/{name} could not be renamed to {target}")

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it is there."""
        self._call(lambda: self._fs.delete(self._path(name), True))


def _is_missing(error: Exception) -> bool:
    java = getattr(error, "java_exception", None)
    return java is not None and java.getClass().getSimpleName() == "FileNotFoundException"
