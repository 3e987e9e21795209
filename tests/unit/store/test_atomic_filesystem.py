"""Files appear whole: a reader that looks all the time never sees half a file, and a failed write leaves none."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from ray_jobs.store import atomic_filesystem
from ray_jobs.store.atomic_filesystem import atomic_local_filesystem


def test_the_name_appears_with_the_close(tmp_path: Path) -> None:
    filesystem = pickle.loads(pickle.dumps(atomic_local_filesystem()))
    stream = filesystem.open_output_stream(str(tmp_path / "x.parquet"))
    stream.write(b"12345")
    stream.flush()
    assert not (tmp_path / "x.parquet").exists()
    stream.close()
    assert (tmp_path / "x.parquet").read_bytes() == b"12345"
    assert len(list(tmp_path.iterdir())) == 1


def test_readers_pass_over_a_file_in_the_making(tmp_path: Path) -> None:
    filesystem = atomic_local_filesystem()
    table = pa.table({"a": [1, 2]})
    pads.write_dataset(table, str(tmp_path), format="parquet", filesystem=filesystem, basename_template="y-{i}.parquet")
    stream = filesystem.open_output_stream(str(tmp_path / "x.parquet"))
    stream.write(b"half")
    assert pads.dataset(tmp_path, format="parquet").to_table().equals(table)
    stream.close()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = atomic_filesystem._File(str(tmp_path / "x.parquet"))

    class Full:
        closed = False

        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            self.closed = True

    file._file.close()
    monkeypatch.setattr(file, "_file", Full())
    with pytest.raises(OSError, match="No space left"):
        file.write(b"data")
    file.close()
    assert list(tmp_path.iterdir()) == []
