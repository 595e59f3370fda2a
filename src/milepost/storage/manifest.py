"""The manifest: ``milepost.json``, the file whose presence makes a folder a checkpoint. See docs/format-v1.md."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.errors import CorruptCheckpointError, UnsupportedFormatError
from milepost.records import Checkpoint, Level
from milepost.storage.digests import ALGORITHM, CHUNK, FileRecord, digest
from milepost.storage.json_text import json_bytes
from milepost.storage.layout import MANIFEST, is_safe_name, is_training_state

FORMAT = "milepost"
FORMAT_VERSION = "1.0"
_MAJOR = 1
_SEAL_KEY = b'"manifest_digest": "'
_NO_SEAL = b"0" * 32
_LONGEST = 256 * 1024 * 1024
_LARGEST_CHUNK = 1024 * 1024 * 1024
_VERSION = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a manifest says; docs/format-v1.md has the meaning of each field.

    ``created`` is in seconds since 1970 (UTC), ``seconds`` is training time up to this step. ``damage`` says
    why a resume passed this checkpoint over: from then on it does not count. ``unknown`` keeps fields of a newer
    minor version, so that rewriting a manifest loses none.
    """

    step: int
    serial: int
    run_id: str
    id: str
    created: float
    files: Mapping[str, FileRecord]
    level: Level = Level.FULL
    epoch: int | None = None
    seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    pinned: bool = False
    config: str | None = None
    damage: str | None = None
    ties: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    healthy: bool | None = None
    format_version: str = FORMAT_VERSION
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def as_checkpoint(self, path: Path) -> Checkpoint:
        """The record of the checkpoint in the folder ``path``."""
        return Checkpoint(
            step=self.step,
            path=path,
            serial=self.serial,
            run_id=self.run_id,
            id=self.id,
            created=self.created,
            size=sum(record.size for record in self.files.values()) + (path / MANIFEST).lstat().st_size,
            level=self.level,
            epoch=self.epoch,
            metrics=dict(self.metrics),
            reasons=self.reasons,
            pinned=self.pinned,
            config=self.config,
            state_size=sum(record.size for name, record in self.files.items() if is_training_state(name)),
            healthy=self.healthy,
        )


def encode(manifest: Manifest) -> bytes:
    """The manifest's bytes: JSON whose last field seals all the others."""
    body = {
        "format": FORMAT,
        "format_version": manifest.format_version,
        "step": manifest.step,
        "serial": manifest.serial,
        "run_id": manifest.run_id,
        "id": manifest.id,
        "created": manifest.created,
        "level": manifest.level.value,
        "epoch": manifest.epoch,
        "seconds": manifest.seconds,
        "metrics": {name: _number_out(value) for name, value in manifest.metrics.items()},
        "reasons": list(manifest.reasons),
        "pinned": manifest.pinned,
        "config": manifest.config,
        "damage": manifest.damage,
        "ties": dict(manifest.ties),
        "software": dict(manifest.software),
        **({} if manifest.healthy is None else {"healthy": manifest.healthy}),
        **manifest.unknown,
        "digest": ALGORITHM,
        "files": {name: _record_out(record) for name, record in manifest.files.items()},
        "manifest_digest": _NO_SEAL.decode(),
    }
    text = json_bytes(body, indent=1)
    start = text.rfind(_SEAL_KEY) + len(_SEAL_KEY)
    return text[:start] + digest(text).encode() + text[start + len(_NO_SEAL) :]


def decode(data: bytes, path: Path) -> Manifest:
    """Read a manifest's bytes; ``path`` is the checkpoint's folder, for messages.

    Raises CorruptCheckpointError if a single bit is not as it was written, and UnsupportedFormatError for a newer
    major version.
    """
    try:
        body = json.loads(data)
        if not isinstance(body, dict) or body.pop("format", None) != FORMAT:
            raise ValueError("it is not a Milepost manifest")
        version = _version(body)
        # A newer format that is sealed otherwise says so in ``digest``; with ours, a flipped bit in the version is
        # damage, and not a newer format.
        if not _sealed(data) and (_major(version) <= _MAJOR or body["digest"] == ALGORITHM):
            raise ValueError("its digest does not match its content")
        if _major(version) > _MAJOR:
            raise _too_new(path, version)
        return _from_body(body, version, path)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise _unusable(path, f"{MANIFEST} cannot be read ({error})") from error


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint folder ``path``.

    Raises FileNotFoundError where there is none (or no folder), CorruptCheckpointError and UnsupportedFormatError as
    ``decode``.
    """
    try:
        return decode(_read(path), path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path / MANIFEST)) from None
    except OSError as error:
        link = error.errno == errno.ELOOP
        what = "is a symbolic link, and those are not followed" if link else f"cannot be read ({error.strerror})"
        raise _unusable(path, f"{MANIFEST} {what}") from error


def _read(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path / MANIFEST, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _unusable(path, f"{MANIFEST} is not a plain file")
        if found.st_size > _LONGEST:
            raise _unusable(path, f"{MANIFEST} has {found.st_size} bytes, which is too long for a manifest")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _unusable(path: Path, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{path}: {reason}", path=path, problems=[reason])


def _too_new(path: Path, version: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"{path} was written in format {version}, and this Milepost reads {FORMAT_VERSION}. "
        "Install a newer Milepost to read it.",
        path=path,
        version=version,
    )


def _sealed(data: bytes) -> bool:
    at = data.rfind(_SEAL_KEY)
    if at < 0:
        return False
    start = at + len(_SEAL_KEY)
    seal = data[start : start + 32]
    return digest(data[:start] + _NO_SEAL + data[start + 32 :]).encode() == seal


def _version(body: dict[str, Any]) -> str:
    version = body.pop("format_version")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ValueError(f"format_version {version!r} is not major.minor")
    return version


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _level(name: Any, version: str, path: Path) -> Level:
    if version != FORMAT_VERSION and name not in list(Level):
        raise _too_new(path, version)
    return Level(name)


def _from_body(body: dict[str, Any], version: str, path: Path) -> Manifest:
    body.pop("manifest_digest")
    if body.pop("digest") != ALGORITHM:
        raise ValueError("it uses a digest that this Milepost does not know")
    files = {name: _record_in(name, record) for name, record in body.pop("files").items()}
    metrics = {str(name): _number_in(value) for name, value in body.pop("metrics", {}).items()}
    epoch = body.pop("epoch", None)
    config = body.pop("config", None)
    damage = body.pop("damage", None)
    healthy = body.pop("healthy", None)
    return Manifest(
        step=_whole(body, "step"),
        serial=_whole(body, "serial"),
        run_id=str(body.pop("run_id")),
        id=str(body.pop("id")),
        created=float(body.pop("created")),
        files=files,
        level=_level(body.pop("level"), version, path),
        epoch=None if epoch is None else int(epoch),
        seconds=float(body.pop("seconds", 0.0)),
        metrics=metrics,
        reasons=tuple(str(reason) for reason in body.pop("reasons", ())),
        pinned=body.pop("pinned", False) is True,
        config=None if config is None else str(config),
        damage=None if damage is None else str(damage),
        ties={str(name): str(target) for name, target in body.pop("ties", {}).items()},
        software={str(name): str(value) for name, value in body.pop("software", {}).items()},
        healthy=healthy if isinstance(healthy, bool) else None,
        format_version=version,
        unknown=body,
    )


def _whole(body: dict[str, Any], key: str) -> int:
    value = body.pop(key)
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} is {value!r}, not a whole number")
    return value


def _record_out(record: FileRecord) -> dict[str, Any]:
    entry: dict[str, Any] = {"size": record.size, "digests": list(record.digests)}
    if record.chunk != CHUNK:
        entry["chunk"] = record.chunk
    return {**entry, **record.unknown}


def _record_in(name: str, entry: Mapping[str, Any]) -> FileRecord:
    if not is_safe_name(name):
        raise ValueError(f"it lists the file {name!r}, which is outside the checkpoint")
    if name == MANIFEST:
        raise ValueError("it lists itself")
    rest = dict(entry)
    size, chunk = rest.pop("size"), rest.pop("chunk", CHUNK)
    digests = tuple(str(value) for value in rest.pop("digests"))
    if type(size) is not int or type(chunk) is not int or size < 0 or not 1 <= chunk <= _LARGEST_CHUNK:
        raise ValueError(f"file {name!r} has a size that is not a whole number")
    if len(digests) != -(-size // chunk):
        raise ValueError(f"file {name!r} has {len(digests)} digests for {size} bytes")
    return FileRecord(size, digests, chunk, rest)


def _number_out(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _number_in(value: float | str) -> float:
    return _NON_FINITE[value] if isinstance(value, str) else float(value)
