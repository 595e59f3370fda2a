"""Every name on disk is spelled here, and parsed here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "milepost.json"
TRAINING_STATE = "training_state"
STATE_TREE = f"{TRAINING_STATE}/state.json"
STATE_TENSORS = f"{TRAINING_STATE}/tensors"
WEIGHTS = "model"
WEIGHTS_INDEX = "model.safetensors.index.json"
POINTERS = ("latest", "best")

_ID = r"[0-9a-f]{8}"
_STEP = re.compile(r"step_(0|[1-9][0-9]*)")
_STAGING = re.compile(rf"step_(0|[1-9][0-9]*)\.staging-{_ID}")
_REPLACED = re.compile(rf"step_(0|[1-9][0-9]*)\.replaced-{_ID}")
_ASIDE = re.compile(rf"step_(0|[1-9][0-9]*)\.(pruned|replaced|superseded)-{_ID}")
_MANIFEST_DRAFT = re.compile(rf"{re.escape(MANIFEST)}\.{_ID}")
_POINTER_DRAFT = re.compile(rf"({'|'.join(POINTERS)})\.{_ID}")
_REQUEST = re.compile(rf"save-({_ID})")
_TENSOR_FILE = re.compile(r"(model|training_state/tensors)(-[0-9]{5}-of-[0-9]{5})?\.safetensors")
_RESERVED = re.compile(rf"{re.escape(MANIFEST)}(\.{_ID})?|model.*\.safetensors.*|{TRAINING_STATE}(/.*)?")


def new_id() -> str:
    """Eight random hexadecimal digits; drawn from the operating system, never from a training run's generators."""
    return os.urandom(4).hex()


def step_name(step: int) -> str:
    """``step_500``."""
    return f"step_{step}"


def parse_step(name: str) -> int | None:
    """The step of a checkpoint's folder name; None for every other name (``step_04`` and ``step_4_backup`` too)."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def staging_name(step: int) -> str:
    """A fresh name for the folder in which ``step_N`` is put together."""
    return f"{step_name(step)}.staging-{new_id()}"


def is_staging(name: str) -> bool:
    """Whether the name is one that ``staging_name`` gives."""
    return _STAGING.fullmatch(name) is not None


def aside_name(name: str, why: str) -> str:
    """A fresh name for the folder ``name``, moved aside; ``why`` is ``pruned``, ``superseded``, or as follows.

    ``replaced`` makes room for a new checkpoint of that name; once that one is durable it becomes ``pruned``, or
    ``displaced`` where it is not this run's and is kept.
    """
    return f"{name}.{why}-{new_id()}"


def parse_replaced(name: str) -> str | None:
    """The final name of a folder that was moved aside to make room for its replacement, or None."""
    match = _REPLACED.fullmatch(name)
    return step_name(int(match[1])) if match else None


def is_aside(name: str) -> bool:
    """Whether the name is one that this module gives to a checkpoint on its way out."""
    return _ASIDE.fullmatch(name) is not None


def parse_aside(name: str) -> int | None:
    """The step of a checkpoint on its way out, or None."""
    match = _ASIDE.fullmatch(name)
    return int(match[1]) if match else None


def manifest_draft_name() -> str:
    """A fresh name for a changed manifest, until it is renamed over the old one."""
    return f"{MANIFEST}.{new_id()}"


def is_manifest_draft(name: str) -> bool:
    """Whether the name is one that ``manifest_draft_name`` gives."""
    return _MANIFEST_DRAFT.fullmatch(name) is not None


def pointer_draft_name(name: str) -> str:
    """A fresh name for a changed pointer, until it is renamed over the old one."""
    return f"{name}.{new_id()}"


def is_pointer_draft(name: str) -> bool:
    """Whether the name is one that ``pointer_draft_name`` gives."""
    return _POINTER_DRAFT.fullmatch(name) is not None


def request_name(request: str) -> str:
    """The name of the file that asks a live run to save."""
    return f"save-{request}"


def parse_request(name: str) -> str | None:
    """The id of a request by its file's name, None for every other name."""
    match = _REQUEST.fullmatch(name)
    return match[1] if match else None


def shard_names(stem: str, count: int) -> list[str]:
    """File names of ``count`` safetensors shards, as Hugging Face spells them: one shard has no number."""
    if count == 1:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{index:05d}-of-{count:05d}.safetensors" for index in range(1, count + 1)]


def is_weights_file(name: str) -> bool:
    """Whether the name is a shard of the model's weights."""
    match = _TENSOR_FILE.fullmatch(name)
    return match is not None and match[1] == WEIGHTS


def is_state_tensors_file(name: str) -> bool:
    """Whether the name is a shard of the training state's tensors."""
    match = _TENSOR_FILE.fullmatch(name)
    return match is not None and match[1] == STATE_TENSORS


def is_training_state(name: str) -> bool:
    """Whether a listed file is a part of the training state."""
    return name.startswith(f"{TRAINING_STATE}/")


def is_reserved(name: str) -> bool:
    """Whether an asset may not have this name, since a checkpoint's own files do."""
    return _RESERVED.fullmatch(name) is not None


def is_safe_name(name: object) -> bool:
    """Whether a file name from a manifest stays inside its checkpoint: relative, by ``/``, no ``.`` or ``..``."""
    if not isinstance(name, str) or not name or "\\" in name or any(ord(letter) < 32 for letter in name):
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run, and the places in it that are Milepost's own. ``path`` is absolute."""

    path: Path

    @property
    def control(self) -> Path:
        """The folder of the lock and of requests to a live run."""
        return self.path / ".milepost"

    @property
    def lock(self) -> Path:
        """The file that a live manager holds locked."""
        return self.control / "lock"

    @property
    def edits(self) -> Path:
        """The file that is held locked for the moment of a change to a committed checkpoint."""
        return self.control / "edits"

    @property
    def log(self) -> Path:
        """What became of checkpoints, one JSON object a line."""
        return self.control / "log.jsonl"

    @property
    def requests(self) -> Path:
        """The folder of requests to save, one file each; it is there while the run's manager answers them."""
        return self.control / "requests"

    @property
    def trash(self) -> Path:
        """Where pruned checkpoints are moved before their bytes are given back."""
        return self.path / ".trash"

    @property
    def superseded(self) -> Path:
        """Where a rewind puts the checkpoints after its step until the rewound run's first commit."""
        return self.path / ".superseded"

    def checkpoint(self, step: int) -> Path:
        """The final place of a step's checkpoint."""
        return self.path / step_name(step)
