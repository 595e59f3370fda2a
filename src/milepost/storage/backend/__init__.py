"""The few operations on a disk that writing needs, behind one interface that tests can fail or kill at."""

from milepost.storage.backend.interface import Backend, WritableFile
from milepost.storage.backend.local import LocalBackend

__all__ = ["Backend", "LocalBackend", "WritableFile"]
