"""A pyarrow filesystem on which a file appears under its name only when it is whole and on disk.

Ray's Parquet sink opens files at their final name; a reader of samples/ would meet half a file while a run goes on.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

from ray_jobs.core.files import sync_folder


class _File:
    """A binary file that is renamed to `path` by `close`, and never otherwise."""

    def __init__(self, path: str) -> None:
        folder, name = os.path.split(path)
        self._path = path
        self._temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:8]}.tmp")
        self._file = open(self._temporary, "wb")  # noqa: SIM115 - closed by close()
        self._broken = False

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError:
            # the disk is full, say: Arrow closes the stream all the same, and half a file must not get the name
            self._broken = True
            raise

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        if self._file.closed:
            return
        if self._broken:
            self._file.close()
            os.unlink(self._temporary)
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self._path)
        sync_folder(os.path.dirname(self._path))


class AtomicHandler(FSSpecHandler):
    """Everything as on the local disk, but writing."""

    def __init__(self) -> None:
        super().__init__(LocalFileSystem())

    def __reduce__(self) -> tuple[type[AtomicHandler], tuple[()]]:
        """Workers build their own."""
        return AtomicHandler, ()

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:  # noqa: ARG002 - pyarrow passes it
        """A stream whose file appears at `path` when it is closed."""
        return pa.PythonFile(_File(path), mode="w")


def atomic_local_filesystem() -> PyFileSystem:
    """The filesystem to hand to a writer."""
    return PyFileSystem(AtomicHandler())
