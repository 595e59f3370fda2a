"""Every method that the benchmark knows, by name."""

from __future__ import annotations

from functools import partial

from benchmarks.async_peers import LIGHTNING, DistributedAsync, LightningAsync, TorchCheckpointing
from benchmarks.engine import Milepost
from benchmarks.methods import Entry
from benchmarks.peers import BareWriter, DistributedSave, Safetensors, TorchSave, TrainerLike

_OWN = "itself: files and folders"
_HERE = "not by itself; added here, and counted"
_FILES = "its files; folders added here"
CAPTURE = "milepost-capture"

METHODS = [
    Entry("bare-writer", "bare O_DIRECT writer", BareWriter, "a thread, a kept aligned buffer, one preallocated file",
          _OWN, background=True, ours=True),
    Entry("milepost-overlapped", "Milepost, overlapped", partial(Milepost, background=True, capture="overlapped"),
          "background=True, capture='overlapped', digests on", _OWN, background=True, ours=True),
    Entry("milepost-immediate", "Milepost, immediate", partial(Milepost, background=True, capture="immediate"),
          "background=True, capture='immediate', digests on", _OWN, background=True, ours=True),
    Entry("milepost-blocking", "Milepost, blocking", partial(Milepost, background=False),
          "background=False, digests on", _OWN, ours=True),
    Entry("torch-save", "torch.save", TorchSave, "one file", _HERE),
    Entry("safetensors", "safetensors", Safetensors, "save_file, one file", _HERE, package="safetensors"),
    Entry("trainer-like", "as HF Trainer", TrainerLike,
          "safetensors for weights, torch.save for optimizer, scheduler, generators", _HERE, package="safetensors"),
    Entry("dcp", "DCP save", DistributedSave, "no_dist, FileSystemWriter's defaults", _FILES),
    Entry("dcp-thread", "DCP async, thread", partial(DistributedAsync, process=False),
          "kept DefaultStager, plan caching", _FILES, background=True),
    Entry("dcp-process", "DCP async, process", partial(DistributedAsync, process=True),
          "kept DefaultStager in shared memory, plan caching", _FILES, background=True),
    Entry("dcp-process-beside", "DCP async, process, staged beside",
          partial(DistributedAsync, process=True, beside=True),
          "the same, use_async_staging=True; the update waits for staging_completion", _FILES, background=True),
    Entry("torch-checkpointing", "torch-checkpointing", TorchCheckpointing,
          "as documented for CPU: no pinning, shared memory, prewarm_staging, lock(); use_direct_io=False", _HERE,
          background=True, package="torch_checkpointing"),
    Entry("lightning-async", "Lightning AsyncCheckpointIO", LightningAsync, "around TorchCheckpointIO", _HERE,
          background=True, package=LIGHTNING or "lightning"),
]  # fmt: skip

BY_NAME = {entry.name: entry for entry in METHODS}
