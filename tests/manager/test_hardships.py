"""What goes wrong around a run: errors told late, disks that come back, forks, signals, objects that refuse."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from milepost import CheckpointManager, EverySteps, KeepLast, load_weights
from milepost.errors import (
    ConfigError,
    CorruptCheckpointError,
    IncompatibleStateError,
    MilepostError,
    SaveFailedError,
    UnsupportedStateError,
)
from milepost.records import TextAsset
from milepost.storage import reading
from milepost.storage.backend import LocalBackend
from milepost.storage.catalog import read_catalog
from milepost.storage.verify import verify_checkpoint
from tests.faults import in_child
from tests.manager.training import MODES, Run, same, step_folders


class Moody(LocalBackend):
    """Its renames of staging folders fail while ``bad``."""

    bad = False

    def rename(self, source: Path, target: Path) -> None:
        if self.bad and ".staging-" in source.name:
            raise OSError(errno.EIO, "Input/output error")
        super().rename(source, target)


class Counting:
    """A model whose weight is the number of updates it has had."""

    def __init__(self) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.state = {"model": self.model, "optimizer": self.optimizer}

    def update(self) -> None:
        self.model.weight.grad = -torch.ones(1, 1)
        self.optimizer.step()


def weight(folder: Path, step: int) -> float:
    model = nn.Linear(1, 1, bias=False)
    load_weights(folder / f"step_{step}", model)
    return model.weight.item()


@pytest.mark.parametrize("mode", MODES)
def test_a_step_counts_though_it_raises_an_earlier_error(tmp_path, mode) -> None:
    backend, run = Moody(), Counting()
    caught = []
    with CheckpointManager(
        tmp_path, run.state, save=EverySteps(2), signals=False, backend=backend, **MODES[mode]
    ) as manager:
        for step in range(1, 6):
            run.update()
            backend.bad = step == 4
            try:
                manager.step(step)
            except SaveFailedError:
                caught.append(step)
            manager._saver.wait()
    assert caught == ([4] if mode == "blocking" else [5])
    assert {step: weight(tmp_path, step) for step in (2, 5)} == {2: 2.0, 5: 5.0}
    assert step_folders(tmp_path) == ["step_2", "step_5"]


def test_a_callback_that_raises_costs_no_step(tmp_path) -> None:
    run = Counting()

    def fail(_: Any) -> None:
        raise KeyError("mine")

    with CheckpointManager(tmp_path, run.state, save=EverySteps(1), signals=False) as manager:
        for step in (1, 2):
            run.update()
            manager.step(step)
            manager.wait()
        manager.on_save(fail)
        run.update()
        with pytest.raises(KeyError, match="mine"):
            manager.step(3)
        manager.step(3)
        manager._saver.callbacks.clear()
    assert weight(tmp_path, 3) == 3.0


def test_a_disk_that_comes_back_brings_its_checkpoints_back(tmp_path, monkeypatch) -> None:
    run = Counting()
    with CheckpointManager(tmp_path, run.state, save=EverySteps(1), signals=False) as manager:
        for step in (1, 2):
            run.update()
            manager.step(step)
            manager.wait()

    def stale(*_: Any) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(reading, "open_plain", stale)
        with (
            pytest.raises(CorruptCheckpointError, match="Stale"),
            CheckpointManager(tmp_path, Counting().state, signals=False) as manager,
        ):
            manager.resume()
    assert verify_checkpoint(tmp_path / "step_2") == []
    again = Counting()
    with CheckpointManager(tmp_path, again.state, signals=False) as manager:
        assert manager.resume() == 2
    assert [checkpoint.step for checkpoint in read_catalog(tmp_path).checkpoints] == [1, 2]
    assert again.model.weight.item() == 2.0


def test_a_file_that_is_put_back_makes_its_checkpoint_good_again(tmp_path, caplog) -> None:
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        run.train(manager, 0, 3)
    away = tmp_path / "step_3" / "model.safetensors"
    away.rename(tmp_path / "away")
    with Run().manager(tmp_path) as manager:
        assert manager.resume() == 2
    (tmp_path / "away").rename(away)
    with Run().manager(tmp_path) as manager:
        assert manager.resume() == 3
    assert "step_3 can be used again" in caplog.text


def test_a_rewind_is_not_undone_by_a_checkpoint_that_was_unreadable_then(tmp_path) -> None:
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        run.train(manager, 0, 4)
    manifest = tmp_path / "step_4" / "milepost.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-20])
    with Run().manager(tmp_path) as manager:
        assert manager.resume(2) == 2
    aside = next((tmp_path / ".superseded").glob("step_4*"))
    (aside / "milepost.json").write_bytes(whole)
    with Run().manager(tmp_path) as manager:
        assert manager.resume() == 2


@pytest.mark.parametrize("ask", [lambda manager: manager.pin(4), lambda manager: manager.record_metrics(2, {"a": 1})])
def test_nothing_is_pruned_before_the_run_is_resumed(tmp_path, ask) -> None:
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        run.train(manager, 0, 4)
    weights = tmp_path / "step_4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with Run().manager(tmp_path, keep=KeepLast(1)) as manager:
        ask(manager)
        manager.wait()
        assert step_folders(tmp_path) == ["step_1", "step_2", "step_3", "step_4"]
        assert manager.resume() == 3


class Picky(nn.Module):
    """Refuses the extra state of another version of itself."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), float(version)))
        self.version = version

    def get_extra_state(self) -> Any:
        return {"version": self.version}

    def set_extra_state(self, state: Any) -> None:
        if state["version"] != self.version:
            raise ValueError("another version")


def with_picky_module(version: int) -> dict[str, Any]:
    model = Picky(version)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return {"counters": {"version": version}, "scheduler": scheduler, "optimizer": optimizer, "model": model}


def with_picky_optimizer(version: int) -> dict[str, Any]:
    state = with_picky_module(1)
    state["counters"]["version"] = version
    with torch.no_grad():
        state["model"].weight.fill_(version)

    def refuse(*_: Any) -> None:
        if version == 2:
            raise ValueError("not this one")

    state["optimizer"].register_load_state_dict_pre_hook(refuse)
    return state


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("make", [with_picky_module, with_picky_optimizer])
def test_whoever_refuses_everything_stays_as_it_was(tmp_path, make) -> None:
    saved = make(1)
    with CheckpointManager(tmp_path, saved, save=EverySteps(1), signals=False) as manager:
        saved["scheduler"].step()
        manager.step(1)
    live = make(2)
    drawn = torch.get_rng_state()
    with CheckpointManager(tmp_path, live, signals=False) as manager:
        with pytest.raises(IncompatibleStateError, match=r"another version|not this one"):
            manager.resume()
        assert live["scheduler"].last_epoch == 0
        assert live["counters"] == {"version": 2}
        assert live["model"].weight.tolist() == [2, 2]
        assert torch.equal(torch.get_rng_state(), drawn)


def test_a_module_whose_state_leaves_names_out_comes_back(tmp_path) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.adapter = nn.Linear(2, 2), nn.Linear(2, 2)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {name: value for name, value in super().state_dict(*args, **kwargs).items() if "adapter" in name}

    first, second = Part(), Part()
    with CheckpointManager(tmp_path, {"model": first}, save=EverySteps(1), signals=False) as manager:
        manager.step(1)
    base = second.base.weight.clone()
    with CheckpointManager(tmp_path, {"model": second}, signals=False) as manager:
        assert manager.resume() == 1
    assert torch.equal(second.adapter.weight, first.adapter.weight)
    assert torch.equal(second.base.weight, base)


def test_generators_of_another_kind_are_refused_before_anything_changes(tmp_path) -> None:
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        run.train(manager, 0, 1)
    usual = np.random.get_bit_generator()
    other = Run(seed=5)
    before = other.weights()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        with other.manager(tmp_path) as manager, pytest.raises(IncompatibleStateError, match="numpy's generator"):
            manager.resume()
    finally:
        np.random.set_bit_generator(usual)
    assert same(other.weights(), before)


def test_a_parameter_that_only_the_optimizer_has_comes_back(tmp_path) -> None:
    def make() -> tuple[nn.Parameter, dict[str, Any]]:
        model, temperature = nn.Linear(2, 2), nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.AdamW([*model.parameters(), temperature], lr=0.1)
        return temperature, {"model": model, "optimizer": optimizer}

    trained, state = make()
    with CheckpointManager(tmp_path, state, save=EverySteps(1), signals=False) as manager:
        trained.grad = -torch.ones(1)
        state["optimizer"].step()
        manager.step(1)
    fresh, state = make()
    with CheckpointManager(tmp_path, state, signals=False) as manager:
        manager.resume()
    assert fresh.item() == trained.item() != 0


def test_a_forked_process_writes_nothing_and_hangs_nowhere(tmp_path) -> None:
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        run.train(manager, 0, 2)
        manager.wait()

        def child() -> None:
            for attempt in (lambda: manager.step(3), manager.save, lambda: manager.record_metrics(1, {"a": 1})):
                with pytest.raises(MilepostError, match="forked"):
                    attempt()
            run.train_step()
            manager.close()
            manager.__exit__(None, None, None)

        assert in_child(child) == 0
        assert step_folders(tmp_path) == ["step_1", "step_2"]
        run.train(manager, 2, 3)
    assert step_folders(tmp_path) == ["step_1", "step_2", "step_3"]


def test_a_fork_while_a_copy_is_under_way_can_train(tmp_path, monkeypatch) -> None:
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        run.train(manager, 0, 1)
        assert in_child(lambda: run.train_step() and None) == 0


def test_handlers_of_managers_closed_in_any_order_are_gone(tmp_path) -> None:
    seen: list[int] = []
    mine = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        first = Run().manager(tmp_path / "a", signals=True)
        second = Run().manager(tmp_path / "b", signals=True)
        first.close()
        second.close()
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, mine)


def test_a_handler_that_raises_is_obeyed_after_the_save(tmp_path) -> None:
    def leave(*_: Any) -> None:
        raise SystemExit(9)

    mine = signal.signal(signal.SIGTERM, leave)
    run = Run()
    try:
        with pytest.raises(SystemExit), run.manager(tmp_path, every=100, signals=True) as manager:
            run.train(manager, 0, 1)
            os.kill(os.getpid(), signal.SIGTERM)
            run.train(manager, 1, 50)
    finally:
        signal.signal(signal.SIGTERM, mine)
    assert step_folders(tmp_path) == ["step_2"]


def test_a_signal_that_comes_while_closing_is_not_lost(tmp_path) -> None:
    run = Run()
    manager = run.manager(tmp_path, every=100, signals=True)
    run.train(manager, 0, 1)
    manager.on_save(lambda _: os.kill(os.getpid(), signal.SIGINT))
    save = manager._saver.save

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return save(*args, **kwargs)

    manager._saver.save = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        manager.close()
    assert step_folders(tmp_path) == ["step_1"]


def test_closing_in_another_thread_gives_the_lock_back(tmp_path) -> None:
    run = Run()
    manager = run.manager(tmp_path, every=1, signals=True)
    run.train(manager, 0, 1)
    thread = threading.Thread(target=manager.close)
    thread.start()
    thread.join()
    with Run().manager(tmp_path, signals=True) as second:
        assert second.resume() == 1
    assert signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, manager._asked._signals._note)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_folder_that_becomes_a_file_is_a_failed_save(tmp_path, mode) -> None:
    run = Run()
    folder = tmp_path / "run"
    with pytest.raises(SaveFailedError), run.manager(folder, every=1, **MODES[mode]) as manager:
        run.train(manager, 0, 1)
        manager.wait()
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("a file")
        run.train(manager, 1, 2)
        manager.wait()


def test_a_rule_that_fails_costs_no_save_and_is_named(tmp_path) -> None:
    class Broken:
        def reasons_to_keep(self, checkpoints: Any, facts: Any) -> Any:
            return 1 / 0

    run, told = Run(), []
    with run.manager(tmp_path, every=2, keep=Broken()) as manager:
        manager.on_save(lambda checkpoint: told.append(checkpoint.step))
        run.train(manager, 0, 2)
        with pytest.raises(MilepostError, match=r"step_2 is saved.*ZeroDivisionError"):
            manager.wait()
        manager._keeper.rules = (KeepLast(1),)
        run.train(manager, 2, 4)
    assert told == [2, 4]
    assert step_folders(tmp_path) == ["step_4"]


@pytest.mark.parametrize("change", [{"counters": {"n": 5}}, {"late": {"n": 1}}])
def test_an_entry_that_becomes_another_object_is_refused_by_name(tmp_path, change) -> None:
    state: dict[str, Any] = {"model": nn.Linear(1, 1), "counters": {"n": 0}}
    with CheckpointManager(tmp_path, state, signals=False) as manager:
        manager.step(1)
        held = dict(state)
        state.update(change)
        with pytest.raises(UnsupportedStateError, match=next(iter(change))):
            manager.save()
        state.clear()
        state.update(held)


@pytest.mark.parametrize(
    ("assets", "text"),
    [
        ([TextAsset("a", "x"), TextAsset("a/b", "y")], "lies in 'a'"),
        ([TextAsset("n" * 256, "x")], "255 bytes"),
        ([TextAsset("milepost.json/x", "y")], "keeps for its own"),
        ([Path("/")], "whole file system"),
    ],
)
def test_assets_that_could_never_be_written_are_refused_at_once(tmp_path, assets, text) -> None:
    with pytest.raises(ConfigError, match=text):
        Run().manager(tmp_path, assets=assets)


def test_a_configuration_that_is_no_asset_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"config_name='zz\.yaml'"):
        Run().manager(tmp_path, config_name="zz.yaml")


@pytest.mark.parametrize("source", [True, 2.0, None])
def test_a_source_that_is_none_is_refused_by_name(tmp_path, source) -> None:
    with Run().manager(tmp_path) as manager, pytest.raises(TypeError, match="source"):
        manager.resume(source)


def test_numbers_that_json_cannot_hold_are_refused_by_name(tmp_path) -> None:
    with pytest.raises(UnsupportedStateError, match=r'state\["counters"\]\[\'n\'\]'):
        CheckpointManager(tmp_path / "a", {"counters": {"n": 10**5000}}, signals=False)
    run = Run()
    with run.manager(tmp_path / "b", every=1) as manager:
        run.train_step()
        with pytest.raises(ValueError, match=r"metrics\['loss'\]"):
            manager.step(1, metrics={"loss": 10**400})
        run.train(manager, 1, 2)


def test_a_path_of_another_run_whose_checkpoints_are_all_damaged_says_that(tmp_path) -> None:
    run = Run()
    with run.manager(tmp_path / "step_5", every=1) as manager:
        run.train(manager, 0, 1)
    with Run().manager(tmp_path / "good") as manager:
        assert manager.resume(tmp_path / "step_5") == 1
    (tmp_path / "step_5" / "step_1" / "model.safetensors").write_bytes(b"")
    with Run().manager(tmp_path / "bad") as manager, pytest.raises(CorruptCheckpointError):
        manager.resume(tmp_path / "step_5")


def test_weights_are_loaded_into_a_module_only() -> None:
    with pytest.raises(TypeError, match=r"not a torch\.nn\.Module"):
        load_weights("anywhere", {})  # type: ignore[arg-type]
