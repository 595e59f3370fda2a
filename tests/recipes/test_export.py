"""``milepost export``: what others load is what was saved, in each form and dtype; and nothing half made is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed import checkpoint as distributed
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from milepost import CheckpointManager
from milepost.cli.app import app
from milepost.exporting import export
from milepost.storage.manifest import read_manifest
from tests.recipes.runs import run as train

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def save(folder: Path, model: nn.Module, **options: Any) -> Path:
    with CheckpointManager(folder, {"model": model}, signals=False, **options) as checkpoints:
        return checkpoints.save().result().path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of a tiny Llama with a tie; the first one is the better."""
    folder = tmp_path_factory.mktemp("exports") / "run"
    tied = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "tie_word_embeddings": True,
    }
    train(
        folder,
        model={"config": tied},
        max_steps=8,
        keep_last_n_checkpoints=1,
        keep_best_n_checkpoints=1,
        checkpoint__max_shard_size=20_000,
        optimizer={"name": "AdamW", "lr": 3.0},
    )
    return folder


def saved_weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(path.glob("model*.safetensors")):
        found |= load_file(file)
    return found


@pytest.mark.parametrize("dtype", [None, "bf16", "fp16"])
def test_a_hugging_face_folder_opens_as_it_is(run, tmp_path, dtype):
    target = tmp_path / "deep" / "exported"
    result = call("export", run, "8", "-o", target, *(["--dtype", dtype] if dtype else []))
    assert result.exit_code == 0, result.stderr
    wanted = DTYPES[dtype or "fp32"]
    model = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert model.dtype is wanted and len(AutoTokenizer.from_pretrained(target)) == 290
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    before = saved_weights(run / "step_8")
    loaded = model.state_dict()
    assert loaded.keys() == {*before, "lm_head.weight"}
    assert all(torch.equal(loaded[name], tensor.to(wanted)) for name, tensor in before.items())
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == before.keys() and len(set(index["weight_map"].values())) > 1
    assert index["metadata"]["total_size"] == sum(tensor.numel() for tensor in before.values()) * wanted.itemsize
    assert not [path.name for path in target.iterdir() if "milepost" in path.name or path.suffix == ".yaml"]
    assert not (target / "training_state").exists()
    assert (target / "generation_config.json").exists()
    assert json.loads((target / "config.json").read_text())["dtype"] == str(wanted).removeprefix("torch.")
    assert [path.name for path in target.parent.iterdir()] == ["exported"]


@pytest.mark.parametrize(("output", "file"), [("weights.pt", "weights.pt"), ("folder", "folder/model.pt")])
def test_one_file_for_torch_holds_tensors_only(run, tmp_path, output, file):
    assert call("export", run, "-o", tmp_path / output, "--to", "torch", "--dtype", "bf16").exit_code == 0
    loaded = torch.load(tmp_path / file, weights_only=True)
    before = saved_weights(run / "step_8")
    assert all(torch.equal(loaded[name], tensor.bfloat16()) for name, tensor in before.items())
    assert loaded["lm_head.weight"].data_ptr() == loaded["model.embed_tokens.weight"].data_ptr()
    assert len(list(tmp_path.iterdir())) == 1


def test_torchs_distributed_format_is_read_by_torch(run, tmp_path):
    target = tmp_path / "dcp"
    told = json.loads(call("export", run, "-o", target, "--to", "dcp", "--json").stdout)
    before = saved_weights(run / "step_8")
    assert told["tensors"] == len(before) and told["to"] == "dcp" and ".metadata" in told["files"]
    loaded = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    with pytest.warns(UserWarning, match="single process"):
        distributed.load(loaded, checkpoint_id=target, no_dist=True)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in before.items())


def test_the_best_the_latest_and_a_checkpoints_own_folder_may_be_named(run, tmp_path):
    sources = {}
    for word in ("best", "latest", "4"):
        told = json.loads(call("export", run, word, "-o", tmp_path / word, "--json").stdout)
        sources[word] = Path(told["source"]).name
    assert sources == {"best": "step_4", "latest": "step_8", "4": "step_4"}
    worst = call("export", run, "best", "--metric", "loss", "--mode", "max", "-o", tmp_path / "worst", "--json")
    assert worst.exit_code == 0
    told = json.loads(call("export", run / "step_4", "-o", tmp_path / "own", "--json").stdout)
    assert told["source"] == str(run / "step_4")


class Mixed(nn.Module):
    """Weights of widths and kinds that must not all be cast, in an order that casting turns around."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.big = nn.Parameter(torch.tensor([1.0, 1e6, float("inf"), float("nan")]))
        self.none = nn.Parameter(torch.empty(0, 4))
        self.register_buffer("count", torch.tensor([2**40, 3]))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("eight", torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn))
        self.register_buffer("complex", torch.tensor([1 + 2j], dtype=torch.complex64))


def test_only_floating_point_numbers_are_cast_and_what_overflows_is_said(tmp_path):
    torch.manual_seed(0)
    model = Mixed()
    source = save(tmp_path / "run", model)
    done = export(source, tmp_path / "out", dtype="fp16")
    assert (done.tensors, done.cast, done.overflowed) == (7, 3, ["big"])
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    expected = {
        name: value.half() if value.dtype in (torch.float64, torch.float32) else value
        for name, value in model.state_dict().items()
    }
    assert loaded.keys() == expected.keys()
    for name, value in expected.items():
        assert loaded[name].dtype == value.dtype and loaded[name].shape == value.shape
        assert torch.equal(loaded[name].view(torch.uint8), value.view(torch.uint8))
    result = call("export", tmp_path / "run", "-o", tmp_path / "again", "--dtype", "fp16")
    assert "became infinite in: big" in result.stderr


@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_large_tensors_pass_in_pieces(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr("milepost.storage.pieces._MOST_ITEMS", 100)
    model = nn.Linear(70, 13)
    source = save(tmp_path / "run", model)
    told: list[int] = []
    export(source, tmp_path / "out", dtype=dtype, on_bytes=told.append)
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(loaded[name], each.to(loaded[name].dtype)) for name, each in model.state_dict().items())
    assert sum(told) == read_manifest(source).files["model.safetensors"].size


@pytest.mark.parametrize("to", ["hf", "torch", "dcp"])
def test_nothing_is_overwritten_and_nothing_half_made_is_left(run, tmp_path, to):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("mine")
    result = call("export", run, "-o", taken, "--to", to)
    assert result.exit_code == 1
    assert "exists already and is not empty. Nothing is overwritten" in result.stderr
    assert [path.name for path in taken.iterdir()] == ["mine"]
    file = tmp_path / "weights.pt"
    file.write_text("mine")
    assert call("export", run, "-o", file, "--to", "torch").exit_code == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    assert call("export", run, "-o", empty, "--to", to).exit_code == 0
    assert file.read_text() == "mine" and len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("to", ["hf", "torch", "dcp"])
def test_a_flipped_bit_is_noticed_and_nothing_is_left(tmp_path, to):
    source = save(tmp_path / "run", nn.Linear(4, 4))
    weights = source / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    result = call("export", source, "-o", tmp_path / "out", "--to", to)
    assert result.exit_code == 1
    assert "differs from its digest" in result.stderr and result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["{run}", "7", "-o", "{out}"], 1, "no checkpoint of step 7. Steps that it has: 4, 8."),
        (["{run}", "first", "-o", "{out}"], 2, "give a step, latest or best"),
        (["{run}", "best", "--metric", "accuracy", "-o", "{out}"], 1, "no checkpoint with the metric 'accuracy'"),
        (["{run}/nowhere", "-o", "{out}"], 1, "there is no run folder"),
        (["{run}", "-o", "{out}", "--dtype", "int4"], 2, "int4"),
        (["{run}", "-o", "{out}", "--to", "onnx"], 2, "onnx"),
        (["{run}"], 2, "--output"),
    ],
)
def test_a_mistake_is_told_and_makes_nothing(run, tmp_path, arguments, status, text):
    out = tmp_path / "out"
    result = call("export", *(each.replace("{run}", str(run)).replace("{out}", str(out)) for each in arguments))
    assert result.exit_code == status
    assert text in result.stderr and "Traceback" not in result.output
    assert not out.exists()


def test_a_best_that_nothing_says_how_to_find_is_an_error_that_names_the_metrics(tmp_path):
    with CheckpointManager(tmp_path / "run", {"model": nn.Linear(1, 1)}, signals=False) as checkpoints:
        checkpoints.step(1, metrics={"accuracy": 0.5})
    result = call("export", tmp_path / "run", "best", "-o", tmp_path / "out")
    assert result.exit_code == 2 and "say --metric, one of accuracy" in result.stderr
