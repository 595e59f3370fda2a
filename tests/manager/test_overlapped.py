"""Copies made beside training hold the state of the moment, whatever changes it later, and however late they are."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from milepost import CheckpointManager, EverySteps
from milepost.copying import SpoiledCopyError
from milepost.memory import Arena
from milepost.snapshot.capture import capture
from milepost.snapshot.stateful import check_state
from milepost.storage.catalog import read_catalog
from milepost.storage.manifest import read_manifest
from milepost.storage.reader import read_snapshot
from milepost.workers import Workers
from tests.manager.training import MODES, Run, same


class LateWorkers(Workers):
    """Threads that copy nothing until ``release`` is set: what is needed is copied by whoever waits for it."""

    release = threading.Event()

    def _next(self) -> Any:
        while not self.release.is_set():
            with self._wake:
                if self._unhurried:
                    return self._unhurried.popleft()
                if self._closed and not self._urgent:
                    return None
                # The test's thread sets the event without telling.
                self._wake.wait(0.01)
        return super()._next()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    release = threading.Event()
    monkeypatch.setattr(LateWorkers, "release", release)
    monkeypatch.setattr("milepost.capturing.Workers", LateWorkers)
    return release


class Norms(nn.Module):
    """A model with everything that changes by itself: running statistics, a counter, a shared weight."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, dtype=dtype)
        self.norm = nn.BatchNorm1d(6, dtype=dtype)
        self.second = nn.Linear(6, 6, dtype=dtype)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.image = nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last).to(dtype)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        pixels = self.image(inputs.reshape(-1, 1, 4, 6).contiguous(memory_format=torch.channels_last))
        result: torch.Tensor = self.second(self.norm(self.first(inputs))).sum() + pixels.sum()
        return result


Optimizers = Callable[[nn.Module], list[torch.optim.Optimizer]]


def one(kind: Any, **settings: Any) -> Optimizers:
    return lambda model: [kind(model.parameters(), **settings)]


OPTIMIZERS: dict[str, Optimizers] = {
    "AdamW": one(torch.optim.AdamW, lr=0.1),
    "AdamW, fused": one(torch.optim.AdamW, lr=0.1, fused=True),
    "AdamW, foreach": one(torch.optim.AdamW, lr=0.1, foreach=True),
    "AdamW, amsgrad": one(torch.optim.AdamW, lr=0.1, amsgrad=True),
    "AdamW, a tensor as rate": one(torch.optim.AdamW, lr=torch.tensor(0.1)),
    "SGD, no state": one(torch.optim.SGD, lr=0.1),
    "SGD, momentum": one(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adafactor": one(torch.optim.Adafactor, lr=0.1),
    "RMSprop": one(torch.optim.RMSprop, lr=0.01),
    "LBFGS": one(torch.optim.LBFGS, lr=0.01, max_iter=2),
    "two": lambda model: [
        torch.optim.AdamW([model.first.weight], lr=0.1),
        torch.optim.SGD(model.image.parameters(), lr=0.1, momentum=0.5),
    ],
    "for a part": lambda model: [torch.optim.AdamW(model.first.parameters(), lr=0.1)],
}


class Training:
    """A run with an EMA copy, accumulation, a scheduler, evaluation passes and a step by hand in between."""

    def __init__(self, optimizers: Optimizers, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.model = Norms(dtype)
        self.ema = AveragedModel(self.model, use_buffers=True)
        self.optimizers = optimizers(self.model)
        self.schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in self.optimizers]
        self.extra = {"tensor": torch.zeros(3), "view": self.model.first.weight.detach()[0], "list": [0]}
        self.state: dict[str, Any] = {"model": self.model, "ema": self.ema, "extra": self.extra}
        self.state |= {f"optimizer_{at}": each for at, each in enumerate(self.optimizers)}
        self.state |= {f"scheduler_{at}": each for at, each in enumerate(self.schedulers)}
        self.dtype = dtype

    def step(self) -> None:
        def loss() -> torch.Tensor:
            for each in self.optimizers:
                each.zero_grad()
            total = torch.zeros((), dtype=self.dtype)
            for _ in range(2):
                total = total + self.model(torch.randn(8, 6, dtype=self.dtype)).square() / 100
            total.backward()
            return total

        self.model.eval()
        with torch.no_grad():
            self.model(torch.randn(4, 6, dtype=self.dtype))
        self.model.train()
        if not isinstance(self.optimizers[0], torch.optim.LBFGS):
            loss()
        for each in self.optimizers:
            each.step(loss) if isinstance(each, torch.optim.LBFGS) else each.step()
        for scheduler in self.schedulers:
            scheduler.step()
        with torch.no_grad():
            self.model.first.bias.clamp_(-0.5, 0.5)
        self.ema.update_parameters(self.model)
        self.extra["tensor"] += 1
        self.extra["list"][0] += 1


def content(snapshot: Any) -> Any:
    tensors = {**snapshot.weights, **{f"state {name}": value for name, value in snapshot.tensors.items()}}
    described = {name: (value.dtype, value.shape, bytes(value.data)) for name, value in tensors.items()}
    return described, dict(snapshot.ties), snapshot.state


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["overlapped", "immediate"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_case_27_every_byte_is_that_of_the_moment_however_late_it_is_copied(tmp_path, late, name, mode, dtype) -> None:
    if dtype is torch.bfloat16 and name == "LBFGS":
        dtype = torch.float64
    training = Training(OPTIMIZERS[name], dtype)
    entries = check_state(training.state)
    wanted = {}
    with CheckpointManager(tmp_path, training.state, save=EverySteps(1), capture=mode, signals=False) as manager:
        for step in range(1, 5):
            training.step()
            wanted[step] = content(capture(entries))
            manager.step(step)
        late.set()
    assert len(read_catalog(tmp_path).checkpoints) == 4
    for checkpoint in read_catalog(tmp_path).checkpoints:
        found = content(read_snapshot(checkpoint.path, read_manifest(checkpoint.path)))
        assert found[0] == wanted[checkpoint.step][0]
        assert found[1:] == wanted[checkpoint.step][1:]


def test_training_goes_on_while_the_copy_waits_until_the_next_update(tmp_path, late) -> None:
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        run.train_step()
        before = run.weights()
        manager.step(1)
        run.model(torch.randn(2, 4)).sum().backward()
        assert read_catalog(tmp_path).checkpoints == ()
        assert same(run.weights(), before)
        run.optimizer.step()
        assert manager.held_up_seconds > 0
        manager.wait()
        late.set()
    saved = read_catalog(tmp_path).at(1)
    assert saved is not None
    stored = read_snapshot(saved.path, read_manifest(saved.path)).weights
    assert {name: bytes(value.data) for name, value in stored.items()} == {
        name: value.numpy().tobytes() for name, value in before.items()
    }


def swap_weights(run: Run) -> None:
    with torch.no_grad():
        run.model[0].weight.mul_(2.0)


def change_a_moment(run: Run) -> None:
    run.optimizer.state[run.model[0].weight]["exp_avg"].zero_()


def load_weights(run: Run) -> None:
    run.model.load_state_dict({name: value + 1 for name, value in run.weights().items()})


@pytest.mark.parametrize("change", [swap_weights, change_a_moment, load_weights])
def test_a_change_outside_a_step_is_noticed_and_the_state_is_saved_again(tmp_path, late, caplog, change) -> None:
    run = Run()
    with run.manager(tmp_path, every=2) as manager:
        run.train(manager, 0, 2)
        change(run)
        run.train_step()
        manager._saver.wait()
        manager.step(3)
        assert "capture='immediate'" in caplog.text
        change(run)
        late.set()
        run.train(manager, 3, 4)
        change(run)
    steps = {checkpoint.step: checkpoint.reasons for checkpoint in read_catalog(tmp_path).checkpoints}
    assert sorted(steps) == [3, 4]
    assert "an earlier copy was spoiled" in steps[3]


def test_who_asked_for_a_save_that_was_spoiled_is_told(tmp_path, late) -> None:
    run = Run()
    with run.manager(tmp_path, every=100) as manager:
        run.train(manager, 0, 1)
        job = manager.save()
        swap_weights(run)
        run.train_step()
        with pytest.raises(SpoiledCopyError, match=r"state\[.*0\.weight.* changed outside"):
            job.result()
        manager.step(2)
        late.set()
    assert [checkpoint.step for checkpoint in read_catalog(tmp_path).checkpoints] == [2]


def test_a_change_after_the_last_step_spoils_nothing_that_is_not_saved_again(tmp_path, late) -> None:
    run = Run()
    with run.manager(tmp_path, every=2) as manager:
        run.train(manager, 0, 2)
        swap_weights(run)
        late.set()
    (saved,) = read_catalog(tmp_path).checkpoints
    assert saved.step == 2
    assert same({"w": run.model[0].weight.detach()}, {"w": stored_weight(saved.path)})


def stored_weight(path: Any) -> torch.Tensor:
    from safetensors.torch import load_file

    return load_file(path / "model.safetensors")["0.weight"]


def test_the_arena_is_made_once_and_again_only_for_a_larger_state(tmp_path, monkeypatch) -> None:
    made = []
    monkeypatch.setattr("milepost.capturing.Arena", lambda size: made.append(size) or Arena(size))

    run = Run()
    with run.manager(tmp_path, every=2) as manager:
        run.train(manager, 0, 8)
        assert len(made) == 1
        extra = nn.Parameter(torch.zeros(3_000_000))
        run.optimizer.add_param_group({"params": [extra]})
        for step in range(9, 13):
            run.train_step()
            extra.grad = torch.ones_like(extra)
            run.optimizer.step()
            manager.step(step)
    assert len(made) == 2 and made[1] > made[0]


def test_a_blocking_save_makes_no_arena(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("milepost.capturing.Arena", None)
    run = Run()
    with run.manager(tmp_path, every=2, background=False) as manager:
        run.train(manager, 0, 4)
    assert len(read_catalog(tmp_path).checkpoints) == 2


def test_hooks_go_with_the_manager_and_optimizers_can_be_copied_and_pickled_meanwhile(tmp_path) -> None:
    run = Run()
    with run.manager(tmp_path, every=1) as manager:
        run.train(manager, 0, 1)
        twin = copy.deepcopy(run.model)
        assert same(dict(twin.state_dict()), run.weights())
        pickle.dumps(run.model)
        pickle.dumps(run.optimizer)
        copy.deepcopy(run.optimizer).step()
    assert not run.optimizer._optimizer_step_pre_hooks
    run.train_step()


@pytest.mark.parametrize("mode", MODES)
def test_what_was_saved_is_held_no_longer(tmp_path, mode) -> None:
    run = Run()
    with run.manager(tmp_path, every=1, **MODES[mode]) as manager:
        run.train(manager, 0, 1)
        manager.wait()
        moments = run.optimizer.state[run.model[0].weight]
        old = weakref.ref(moments["exp_avg"])
        moments["exp_avg"] = moments["exp_avg"].clone()
        gc.collect()
        assert old() is None
        run.train(manager, 1, 2)


def test_an_optimizer_that_has_no_hooks_is_copied_at_once(tmp_path, late) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.data = parameter - 0.1 * parameter.grad

    model = nn.Linear(3, 3)
    optimizer = Own(model.parameters(), lr=0.1)
    # As of a class that wraps another optimizer and never called the constructor of torch's.
    Own.step.hooked = False  # type: ignore[attr-defined]
    state = {"model": model, "optimizer": optimizer}
    wanted = {}
    with CheckpointManager(tmp_path, state, save=EverySteps(1), signals=False) as manager:
        for step in (1, 2, 3):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            wanted[step] = content(capture(check_state(state)))
            manager.step(step)
        late.set()
    for checkpoint in read_catalog(tmp_path).checkpoints:
        assert content(read_snapshot(checkpoint.path, read_manifest(checkpoint.path)))[0] == wanted[checkpoint.step][0]


@pytest.mark.parametrize(("option", "value"), [("capture", "later"), ("when_busy", "fail"), ("capture", None)])
def test_other_values_of_the_options_are_refused(tmp_path, option, value) -> None:
    with pytest.raises(ValueError, match=f"{option}="):
        Run().manager(tmp_path, **{option: value})
