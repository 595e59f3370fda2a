"""Ways of saving in the background that people use today, each set up as its documentation recommends."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.limits import sync_tree
from benchmarks.methods import Durably, Method
from benchmarks.peers import distributed_state, whole_state

LIGHTNING = next((name for name in ("lightning", "pytorch_lightning") if importlib.util.find_spec(name)), None)


class Background(Method):
    """A method whose last save has an end, and something to sync after it."""

    writing: Durably | None = None

    def done(self) -> bool:
        """Whether the last save is on the disk."""
        return self.writing is None or self.writing.done()

    def wait(self) -> None:
        """Wait until it is."""
        if self.writing is not None:
            self.writing.result()

    def then_sync(self, end: Any, path: Path) -> None:
        """Sync ``path`` in a thread once ``end()`` returns."""

        def work() -> None:
            end()
            sync_tree(path)

        self.writing = Durably(work)


class DistributedAsync(Background):
    """``torch.distributed.checkpoint.async_save`` with a kept stager and a cached plan.

    With ``process``, the stager's memory is shared with the process that writes. With ``beside``, staging runs in a
    thread beside training, and the update waits for its end.
    """

    def __init__(self, training: Any, folder: Path, *, process: bool, beside: bool = False) -> None:
        super().__init__(training, folder)
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        if not dist.is_initialized():
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        # Pinned memory and non-blocking copies need an accelerator.
        self.stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=process,
                use_async_staging=beside,
                use_non_blocking_copy=False,
            )
        )
        self.planner = DefaultSavePlanner(enable_plan_caching=True)
        self.kind = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
        self.staged: Future[Any] | None = None

    def save(self) -> None:
        """Stage and start."""
        from torch.distributed.checkpoint.state_dict_saver import async_save

        path = self.next_path()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            response: Any = async_save(
                distributed_state(self.training),
                checkpoint_id=path,
                planner=self.planner,
                async_checkpointer_type=self.kind,
                async_stager=self.stager,
            )
        self.staged = getattr(response, "staging_completion", None)
        self.then_sync(getattr(response, "upload_completion", response).result, path)

    @contextlib.contextmanager
    def updating(self) -> Any:
        """Wait for the stager, if it works beside training."""
        if self.staged is not None:
            self.staged.result()
            self.staged = None
        yield

    def close(self) -> None:
        """Give the stager's memory back."""
        self.stager.close()


class TorchCheckpointing(Background):
    """``torch_checkpointing.CheckpointManager``, set up as its documentation says for machines without CUDA."""

    def __init__(self, training: Any, folder: Path) -> None:
        super().__init__(training, folder)
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.config import AsyncCheckpointSaverConfig
        from torch_checkpointing.staging import CheckpointStagerConfig
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        staging = CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False)
        self.manager = CheckpointManager(
            CheckpointManager.Config(
                save=AsyncCheckpointSaverConfig(staging_config=staging),
                # Its O_DIRECT writes are not aligned, and ext4 and XFS refuse them.
                storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
            )
        )
        self.manager.prewarm_staging(whole_state(training))

    def save(self) -> None:
        """Start; staging runs beside training."""
        path = self.next_path()
        future: Any = self.manager.save(str(path), whole_state(self.training))
        self.then_sync(future.result, path)

    def updating(self) -> Any:
        """Its lock, which waits while staging is under way."""
        return self.manager.lock()

    def close(self) -> None:
        """End its process."""
        self.manager.close()


class LightningAsync(Background):
    """Lightning's ``AsyncCheckpointIO`` around ``TorchCheckpointIO``, given what its Trainer gives it."""

    def __init__(self, training: Any, folder: Path) -> None:
        super().__init__(training, folder)
        if LIGHTNING == "lightning":
            from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
        else:
            from pytorch_lightning.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
        self.io = AsyncCheckpointIO(TorchCheckpointIO())

    def save(self) -> None:
        """Clone and start."""
        state, path = whole_state(self.training), self.next_path()
        checkpoint = {
            "epoch": 0,
            "global_step": state["step"],
            "state_dict": state["model"],
            "optimizer_states": [state["optimizer"]],
            "lr_schedulers": [state["lr_scheduler"]],
        }
        self.io.save_checkpoint(checkpoint, str(path / "last.ckpt"))
        # Its only way to wait; the next save starts its thread again.
        self.then_sync(self.io.teardown, path)
