"""Where storage's tests work: in memory, if there is room, since they make and remove tens of thousands of files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ROOM = 1 << 29


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of the test's own; the disk itself is exercised in tests/conformance and tests/crash."""
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    with tempfile.TemporaryDirectory(prefix="milepost-", dir=MEMORY if usable else None) as folder:
        yield Path(folder).resolve()
