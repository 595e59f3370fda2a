"""Capture and restore of live objects: bit for bit, in place, all or nothing, and without touching what it reads."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from milepost.errors import IncompatibleStateError, SaveFailedError, UnsupportedStateError
from milepost.snapshot.capture import capture
from milepost.snapshot.flatten import Flattener
from milepost.snapshot.live import own_bytes
from milepost.snapshot.restore import restore, restore_model
from milepost.snapshot.stateful import check_state


def halves(parameters: Any) -> tuple[list[Any], list[Any]]:
    listed = list(parameters)
    return listed[:2], listed[2:]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "AdamW tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "AdamW capturable off": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=False, maximize=True),
    "Adam named": lambda p: torch.optim.Adam([(f"own {at}", each) for at, each in enumerate(p)], lr=0.01),
    "two groups": lambda p: torch.optim.AdamW(
        [{"params": part, "lr": lr} for part, lr in zip(halves(p), (0.1, 0.01), strict=True)], amsgrad=True
    ),
    "Muon": lambda p: torch.optim.Muon([each for each in p if each.dim() == 2], lr=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2),
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "multi-step": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5]),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 8),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=3, cycle_momentum=False),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.95),
    "averaging": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=4),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.ConstantLR(o, 0.5, 4)]
    ),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


def net(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2)).to(dtype)


class Training:
    """Live objects that are trained a step at a time."""

    def __init__(self, optimizer: str = "AdamW", scheduler: str = "exponential", seed: int = 0, **options: Any) -> None:
        self.model = net(seed, **options)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.entries = check_state({"model": self.model, "optimizer": self.optimizer, "lr_scheduler": self.scheduler})

    def step(self) -> float:
        inputs = torch.randn(8, 4).to(next(self.model.parameters()).dtype)

        def closure() -> torch.Tensor:
            self.model.zero_grad()
            loss = self.model(inputs).float().square().mean()
            loss.backward()
            return loss

        if isinstance(self.optimizer, torch.optim.LBFGS):
            loss = self.optimizer.step(closure)
        else:
            loss = closure()
            self.optimizer.step()
        if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(loss.item())
        else:
            self.scheduler.step()
        return loss.item()


def everything(training: Training) -> Any:
    """All that can be told apart about live objects, bit for bit."""
    flattener = Flattener()
    tree = flattener.flatten(
        {
            "model": dict(training.model.state_dict()),
            "optimizer": training.optimizer.state_dict(),
            "scheduler": training.scheduler.state_dict(),
            "requires_grad": [parameter.requires_grad for parameter in training.model.parameters()],
            "gradients": [parameter.grad for parameter in training.model.parameters()],
            "training": training.model.training,
            "generators": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
        },
        "x",
        "x",
    )
    return tree, {name: bytes(stored.data) for name, stored in own_bytes(flattener.tensors).items()}


def continues(first: Training, second: Training, steps: int = 5) -> None:
    """Capture the first, restore into the second, and train both: they must not differ in a bit."""
    snapshot = capture(first.entries)
    losses = [first.step() for _ in range(steps)]
    restore(second.entries, snapshot)
    assert [second.step() for _ in range(steps)] == losses
    assert everything(first) == everything(second)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("before", "dtype"), [(0, torch.float32), (3, torch.float32), (2, torch.bfloat16)], ids=str)
def test_case_20_every_optimizer_continues_bit_for_bit(optimizer, before, dtype):
    first, second = Training(optimizer, dtype=dtype), Training(optimizer, seed=1, dtype=dtype)
    second.step()
    first.model.load_state_dict(net(0, dtype).state_dict())
    for _ in range(before):
        first.step()
    continues(first, second)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step")
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
def test_case_21_every_scheduler_continues(scheduler):
    first, second = Training(scheduler=scheduler), Training(scheduler=scheduler, seed=1)
    for _ in range(4):
        first.step()
    continues(first, second)


def test_moments_of_another_dtype_than_their_parameter_keep_every_bit():
    first, second = Training(dtype=torch.bfloat16), Training(seed=1, dtype=torch.bfloat16)
    first.step()
    for state in first.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].float() + 1e-5
    restore(second.entries, capture(first.entries))
    for one, two in zip(first.optimizer.state.values(), second.optimizer.state.values(), strict=True):
        assert two["exp_avg"].dtype == torch.float32
        assert torch.equal(one["exp_avg"], two["exp_avg"])


@pytest.mark.parametrize("optimizer", ["AdamW", "Adagrad", "AdamW fused", "LBFGS"])
@pytest.mark.parametrize("steps", [0, 2])
def test_capturing_changes_nothing_and_runs_no_step(optimizer, steps):
    training = Training(optimizer)
    for _ in range(steps):
        training.step()
    hooks: list[str] = []
    training.optimizer.register_step_pre_hook(lambda *_: hooks.append("step"))
    before = everything(training)
    state = len(training.optimizer.state)
    capture(training.entries)
    assert everything(training) == before
    assert len(training.optimizer.state) == state
    assert hooks == []


def test_a_copy_does_not_change_with_the_live_state():
    training = Training()
    training.step()
    snapshot = capture(training.entries)
    before = {name: bytes(stored.data) for name, stored in {**snapshot.weights, **snapshot.tensors}.items()}
    for _ in range(2):
        training.step()
    assert before == {name: bytes(stored.data) for name, stored in {**snapshot.weights, **snapshot.tensors}.items()}


def test_optimizer_state_goes_by_parameter_name_whatever_the_order_and_groups():
    def make(reverse: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = net()
        first = list(model[0].parameters())
        rest = [p for p in model.parameters() if all(p is not q for q in first)]
        if reverse:
            rest.reverse()
        return model, torch.optim.AdamW([{"params": first, "lr": 0.5}, {"params": rest, "weight_decay": 0.3}])

    model, optimizer = make(False)
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    snapshot = capture(check_state({"model": model, "optimizer": optimizer}))
    assert set(snapshot.state["optimizer"]["state"]) == {name for name, _ in model.named_parameters()}
    other, turned = make(True)
    restore(check_state({"model": other, "optimizer": turned}), snapshot)
    names = {id(parameter): name for name, parameter in other.named_parameters()}
    for parameter, state in turned.state.items():
        original = dict(model.named_parameters())[names[id(parameter)]]
        assert torch.equal(state["exp_avg"], optimizer.state[original]["exp_avg"])
    assert [group["lr"] for group in turned.param_groups] == [0.5, 0.001]


def test_frozen_and_unused_parameters_have_no_state_before_or_after():
    model = net()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    other = net(1)
    again = torch.optim.AdamW(other.parameters())
    restore(
        check_state({"model": other, "optimizer": again}),
        capture(check_state({"model": model, "optimizer": optimizer})),
    )
    assert other[0].weight not in again.state
    assert len(again.state) == len(optimizer.state)


class Tied(nn.Module):
    def __init__(self, seed: int = 0, names: Any = None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.head = nn.Linear(3, 5, bias=False)
        self.embedding = nn.Embedding(5, 3)
        self.head.weight = self.embedding.weight
        if names is not None:
            self._tied_weights_keys = names


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (None, "head.weight"),
        ({"head.weight": "embedding.weight"}, "embedding.weight"),
        (["head.weight"], "embedding.weight"),
        ([r"head\..*"], "embedding.weight"),
        (["embedding.weight"], "head.weight"),
    ],
)
def test_case_24_a_shared_parameter_is_stored_once_and_the_tie_comes_back(names, kept):
    model, other = Tied(0, names), Tied(1, names)
    snapshot = capture(check_state({"model": model}))
    assert list(snapshot.weights) == [kept]
    assert list(snapshot.ties.values()) == [kept]
    restore(check_state({"model": other}), snapshot)
    assert other.head.weight is other.embedding.weight
    assert torch.equal(other.head.weight, model.head.weight)


def test_case_24_two_tensors_do_not_fit_into_one():
    loose = Tied(0)
    loose.head.weight = nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(IncompatibleStateError, match="one tensor"):
        restore(check_state({"model": Tied(1)}), capture(check_state({"model": loose})))


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_names_are_those_of_the_model_inside_its_wrappers():
    model = net()
    compiled, parallel = torch.compile(model), nn.DataParallel(net())
    inner = net()
    inner[0] = torch.compile(inner[0])
    expected = set(model.state_dict())
    for wrapped in (compiled, parallel, inner):
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=1, momentum=0.9)
        snapshot = capture(check_state({"model": wrapped, "optimizer": optimizer}))
        assert set(snapshot.weights) == expected
        assert set(snapshot.state["optimizer"]["param_groups"][0]["params"]) == {n for n, _ in model.named_parameters()}
        plain = net(3)
        restore_model(plain, snapshot)
        restore(check_state({"model": wrapped, "optimizer": optimizer}), snapshot)
        assert torch.equal(plain[0].weight, unwrapped(wrapped)[0].weight)


def unwrapped(module: nn.Module) -> Any:
    return getattr(module, "module", getattr(module, "_orig_mod", module))


def test_a_modules_own_part_called_module_keeps_its_name():
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)

    assert set(capture(check_state({"model": Holder()})).weights) == {"module.weight", "module.bias"}


def test_several_modules_keep_apart_and_only_the_model_is_weights():
    model, ema = net(0), net(1)
    optimizer = torch.optim.SGD([*model.parameters(), *ema.parameters()], lr=0.1, momentum=0.9)
    snapshot = capture(check_state({"model": model, "ema": ema, "optimizer": optimizer}))
    assert set(snapshot.weights) == set(model.state_dict())
    assert any(name.startswith("ema.") for name in snapshot.tensors)
    others = {"model": net(2), "ema": net(3)}
    again = torch.optim.SGD([p for each in others.values() for p in each.parameters()], lr=0.1, momentum=0.9)
    restore(check_state({**others, "optimizer": again}), snapshot)
    assert torch.equal(others["ema"][0].weight, ema[0].weight)
    assert torch.equal(others["model"][0].weight, model[0].weight)


def test_extra_state_of_a_module_comes_back():
    class Counting(nn.Linear):
        calls = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"calls": self.calls}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.calls = state["calls"]

    model, other = Counting(2, 2), Counting(2, 2)
    model.calls = 7
    restore(check_state({"model": other}), capture(check_state({"model": model})))
    assert other.calls == 7


def test_plain_values_are_restored_in_place():
    inner, tensor, numbers = {"a": 1}, torch.zeros(2), [1, 2]
    state = {"inner": inner, "tensor": tensor, "numbers": numbers, "gone": 1}
    entries = check_state({"counters": state})
    saved = copy.deepcopy(state)
    snapshot = capture(entries)
    inner["a"], inner["new"] = 5, 6
    tensor.fill_(3)
    numbers.append(3)
    del state["gone"]
    restore(entries, snapshot)
    assert state["inner"] is inner and state["tensor"] is tensor and state["numbers"] is numbers
    assert tensor.tolist() == [0, 0]
    assert list(state) == list(saved) and inner == {"a": 1} and numbers == [1, 2]


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a misshapen tensor": lambda state: state.update(model=nn.Sequential(nn.Linear(4, 9))),
    "another dtype": lambda state: state.update(model=state["model"].double()),
    "an entry too many": lambda state: state.update(more={"a": 1}),
    "an entry too few": lambda state: state.pop("lr_scheduler"),
    "other groups": lambda state: state.update(
        optimizer=torch.optim.SGD([{"params": [p]} for p in state["model"].parameters()], lr=1)
    ),
    "fewer parameters": lambda state: state.update(
        optimizer=torch.optim.SGD(list(state["model"].parameters())[:2], lr=1)
    ),
    "another type": lambda state: state.update(counters=[1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_fit_is_refused_and_all_live_objects_stay(change):
    first, second = Training(), Training(seed=1)
    first.step()
    snapshot = capture(
        check_state(
            {"model": first.model, "optimizer": first.optimizer, "lr_scheduler": first.scheduler, "counters": {"a": 1}}
        )
    )
    counters = {"a": 2}
    state = {
        "model": second.model,
        "optimizer": second.optimizer,
        "lr_scheduler": second.scheduler,
        "counters": counters,
    }
    CHANGES[change](state)
    before = everything(second)
    with pytest.raises(IncompatibleStateError, match="nothing was changed"):
        restore(check_state(state), snapshot)
    assert everything(second) == before
    assert counters == {"a": 2}


def test_every_fault_is_named_at_once():
    first = Training()
    snapshot = capture(first.entries)
    other = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.ReLU(), nn.Linear(9, 2, bias=False), nn.Linear(2, 2))
    with pytest.raises(IncompatibleStateError) as caught:
        restore(check_state({"model": other}), snapshot, allow_missing=["optimizer", "lr_scheduler"])
    assert set(caught.value.missing) == {"model.4.weight", "model.4.bias"}
    assert "model.3.bias" in caught.value.unexpected
    assert any("model.0.weight" in text for text in caught.value.mismatched)


def test_weights_alone_load_with_or_without_strictness():
    snapshot = capture(check_state({"model": net(0)}))
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    before = other[0].weight.clone()
    with pytest.raises(IncompatibleStateError) as caught:
        restore_model(other, snapshot)
    assert "3.weight" in caught.value.unexpected
    assert torch.equal(other[0].weight, before)
    result = restore_model(other.double(), snapshot, strict=False)
    assert result.missing == () and "3.weight" in result.unexpected
    assert torch.equal(other[0].weight.float(), net(0)[0].weight)


def test_a_failing_state_dict_is_named():
    class Broken:
        def state_dict(self) -> dict[str, int]:
            raise RuntimeError("lost")

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    with pytest.raises(SaveFailedError, match=r'state\["thing"\]\.state_dict\(\) failed.*lost'):
        capture(check_state({"thing": Broken()}))


@pytest.mark.parametrize("name", ["rng", "", 3])
def test_names_of_entries_are_checked(name):
    with pytest.raises(UnsupportedStateError):
        check_state({name: {}})


def test_many_small_tensors_are_no_trouble():
    model = nn.ParameterList(nn.Parameter(torch.randn(2)) for _ in range(5000))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for parameter in model:
        parameter.grad = torch.ones(2)
    optimizer.step()
    entries = check_state({"model": model, "optimizer": optimizer})
    snapshot = capture(entries)
    restore(entries, snapshot)
    assert len(snapshot.weights) == 5000
