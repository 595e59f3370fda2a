"""Modules of every make: wrapped, tied, averaged, versioned, with extra state and expanded buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.distributed import HashStore, destroy_process_group, init_process_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from milepost.errors import IncompatibleStateError, UnsupportedStateError
from milepost.records import Snapshot
from milepost.snapshot.capture import capture
from milepost.snapshot.plain import same
from milepost.snapshot.restore import restore, restore_model
from milepost.snapshot.stateful import check_state


def captured(**state: Any) -> Snapshot:
    return capture(check_state(state))


def continued(first: nn.Module, second: nn.Module) -> None:
    restore(check_state({"model": second}), captured(model=first))
    assert same(dict(second.state_dict()), dict(first.state_dict()))


class Extra(nn.Linear):
    """A layer whose extra state is a tensor of changing length, as that of fp8 layers is."""

    def __init__(self, count: int) -> None:
        super().__init__(2, 2)
        self.count = count

    def get_extra_state(self) -> torch.Tensor:
        return torch.ones(self.count, dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.count = len(state)


def test_extra_state_that_is_a_tensor_is_no_weight_and_may_change_its_length():
    first, second = nn.Sequential(Extra(3)), nn.Sequential(Extra(9))
    assert set(captured(model=first).weights) == {"0.weight", "0.bias"}
    continued(first, second)
    assert second[0].count == 3
    plain = nn.Sequential(nn.Linear(2, 2))
    snapshot = captured(model=first)
    assert restore_model(plain, snapshot).missing == ()
    assert restore_model(second, snapshot).missing == ()


def test_a_lazy_module_is_refused_by_name_until_it_was_called():
    lazy = nn.Sequential(nn.LazyLinear(3))
    snapshot = captured(model=nn.Sequential(nn.Linear(2, 3)))
    with pytest.raises(UnsupportedStateError, match=r"state\[\"model\"\]\.0\.weight is a .*UninitializedParameter"):
        captured(model=lazy)
    with pytest.raises(UnsupportedStateError, match=r"0\.weight is a .*UninitializedParameter"):
        restore(check_state({"model": lazy}), snapshot)
    lazy(torch.ones(1, 2))
    restore(check_state({"model": lazy}), snapshot)


def test_the_default_device_makes_no_difference():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    old, new = trained(first), trained(second)
    with torch.device("meta"):
        snapshot = captured(model=first, optimizer=old, counters={"t": torch.ones(2, device="cpu")})
        counters = {"t": torch.zeros(2, device="cpu")}
        restore(check_state({"model": second, "optimizer": new, "counters": counters}), snapshot)
    assert same(dict(second.state_dict()), dict(first.state_dict()))
    assert same(moments(new), moments(old)) and counters["t"].tolist() == [1, 1]


class Versioned(nn.Module):
    """A layer that knows how to read the state of its older self."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2))

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[prefix + "weight"] = state[prefix + "weight"] * 2
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_a_module_does_not_take_its_state_for_that_of_an_older_release():
    continued(nn.Sequential(Versioned()), nn.Sequential(Versioned()))


class Expanded(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2))
        self.register_buffer("mask", torch.tensor([[value], [-value]]).expand(2, 4))


def test_an_expanded_buffer_is_restored_in_place_and_stays_expanded():
    first, second = Expanded(float("nan")), Expanded(2.0)
    mask = second.mask
    continued(first, second)
    assert second.mask is mask and mask.stride() == (1, 0)


def test_values_that_an_expanded_buffer_cannot_hold_are_refused():
    first, second = Expanded(1.0), Expanded(2.0)
    first.mask = torch.arange(8.0).reshape(2, 4)
    with pytest.raises(IncompatibleStateError, match=r"model\.mask: it is expanded here"):
        restore(check_state({"model": second}), captured(model=first))
    assert second.mask[0, 0] == 2


def trained(model: nn.Module, *others: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of all parameters, each with a moment of its own value."""
    parameters = [p for module in (model, *others) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for at, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, at + 1.0)
    optimizer.step()
    return optimizer


def moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [optimizer.state[p]["momentum_buffer"].clone() for p in parameters]


class HasEma(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ema = nn.Linear(2, 2)


def test_a_part_called_like_another_entry_keeps_its_own_moments():
    model, ema = HasEma(), nn.Linear(2, 2)
    optimizer = trained(model, ema)
    snapshot = captured(model=model, ema=ema, optimizer=optimizer)
    again = trained(other := HasEma(), other_ema := nn.Linear(2, 2))
    restore(check_state({"model": other, "ema": other_ema, "optimizer": again}), snapshot)
    assert same(moments(again), moments(optimizer))


def test_case_24_parameters_shared_by_modules_and_optimizers_stay_shared():
    def make(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        encoder = nn.Linear(2, 2)
        actor, critic = nn.Sequential(encoder, nn.Linear(2, 2)), nn.Sequential(encoder, nn.Linear(2, 1))
        return {"model": actor, "critic": critic, "one": trained(actor), "two": trained(critic)}

    first, second = make(0), make(1)
    restore(check_state(second), captured(**first))
    for entry in ("model", "critic"):
        assert same(dict(second[entry].state_dict()), dict(first[entry].state_dict()))
    for entry in ("one", "two"):
        assert same(moments(second[entry]), moments(first[entry]))
    assert second["model"][0] is second["critic"][0]


def test_an_averaged_model_is_restored_with_its_count():
    model = nn.Linear(2, 2)
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        trained(model)
        ema.update_parameters(model)
    snapshot = captured(model=model, ema=ema)
    assert "ema.module.weight" in snapshot.tensors
    again = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    restore(check_state({"model": nn.Linear(2, 2), "ema": again}), snapshot)
    assert again.n_averaged == 3 and torch.equal(again.module.weight, ema.module.weight)


def test_a_model_by_any_name_is_found_again_when_other_modules_join_it():
    first, net, critic = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    before = critic.weight.clone()
    restore(check_state({"net": net, "critic": critic}), captured(net=first), allow_missing=["critic"])
    assert torch.equal(net.weight, first.weight) and torch.equal(critic.weight, before)
    restore(check_state({"net": net}), captured(net=critic, critic=first), allow_missing=["critic"])
    assert torch.equal(net.weight, before)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.embedding = nn.Linear(3, 5, bias=False), nn.Embedding(5, 3)
        self.head.weight = self.embedding.weight


def test_case_24_weights_under_one_of_the_names_load_into_a_tied_model():
    for name in ("head.weight", "embedding.weight"):
        model, loose = Tied(), Tied()
        weights = {name: captured(model=loose).weights["head.weight"]}
        result = restore_model(model, Snapshot(weights, {}, {}, {}))
        assert (result.missing, result.unexpected) == ((), ())
        assert torch.equal(model.head.weight, loose.head.weight) and model.head.weight is model.embedding.weight


def test_case_24_weights_of_an_untied_model_do_not_load_into_a_tied_one():
    loose = Tied()
    loose.head.weight = nn.Parameter(torch.zeros(5, 3))
    snapshot = captured(model=loose)
    with pytest.raises(IncompatibleStateError, match="one tensor"):
        restore_model(Tied(), snapshot)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
@pytest.mark.parametrize("tied", [True, False])
def test_case_24_the_names_kept_are_those_that_transformers_keeps(tied, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=11, tie_word_embeddings=tied, **sizes))
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        kept = set(file.keys())
    for wrapped in (model, torch.compile(model)):
        assert set(captured(model=wrapped).weights) == kept
    holder = nn.Module()
    holder.inner = model
    assert set(captured(model=holder).weights) == {f"inner.{name}" for name in kept}


def test_names_are_those_inside_checkpointed_layers_and_distributed_wrappers():
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), nn.Linear(2, 2))
    expected = {"0.weight", "0.bias", "1.weight", "1.bias"}
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        for wrapped in (model, DistributedDataParallel(model)):
            optimizer = trained(wrapped)
            snapshot = captured(model=wrapped, optimizer=optimizer)
            assert set(snapshot.weights) == expected == set(snapshot.state["optimizer"]["state"])
            plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            again = trained(plain)
            restore(check_state({"model": plain, "optimizer": again}), snapshot)
            assert same(moments(again), moments(optimizer))
            restore(check_state({"model": wrapped, "optimizer": optimizer}), snapshot)
    finally:
        destroy_process_group()


class Nested(torch.optim.Optimizer):
    """An optimizer with tensors deep in its state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                exact = torch.tensor([1 / 3], dtype=torch.float64)
                self.state[parameter] = {"factors": [exact, (exact * 2, {"deep": exact * 3})], "note": "x"}


@pytest.mark.parametrize("hooked", [False, True])
def test_tensors_deep_in_an_optimizers_state_keep_every_bit(hooked):
    first, second = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2).bfloat16()
    old, new = Nested(first.parameters()), Nested(second.parameters())
    seen: list[int] = []
    if hooked:
        new.register_load_state_dict_pre_hook(lambda _, state: seen.append(len(state["state"])))
    old.step()
    restore(check_state({"model": second, "optimizer": new}), captured(model=first, optimizer=old))
    assert same(list(new.state.values()), list(old.state.values()))
    assert seen == ([2] if hooked else [])


def test_a_learning_rate_that_is_a_tensor_comes_back_as_one():
    parameter = nn.Parameter(torch.ones(2))
    first = torch.optim.AdamW([parameter], lr=torch.tensor(0.25), foreach=False)
    second = torch.optim.AdamW([parameter], lr=torch.tensor(0.5), foreach=False)
    restore(check_state({"o": second}), captured(o=first))
    assert torch.equal(second.param_groups[0]["lr"], torch.tensor(0.25))
