"""``milepost export``: a checkpoint's weights for others."""

from __future__ import annotations

import importlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from milepost.cli.completing import steps_and_words
from milepost.cli.naming import given_checkpoint, is_checkpoint, named_checkpoint
from milepost.cli.progress import progress
from milepost.cli.reporting import existing_run, print_json, reports_errors
from milepost.quantities import format_size


class Form(StrEnum):
    """What is written."""

    HF = "hf"
    TORCH = "torch"
    DCP = "dcp"


class Dtype(StrEnum):
    """What floating-point weights are cast to."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Mode(StrEnum):
    """Whether less or more is better."""

    MIN = "min"
    MAX = "max"


@reports_errors
def export(
    run_dir: Annotated[Path, typer.Argument(help="The run's folder (output_dir), or a checkpoint's.")],
    which: Annotated[
        str, typer.Argument(metavar="[STEP|best|latest]", help="The checkpoint.", autocompletion=steps_and_words)
    ] = "latest",
    output: Annotated[Path, typer.Option("--output", "-o", help="The new folder (torch: or a file, *.pt).")] = ...,  # type: ignore[assignment]
    dtype: Annotated[Dtype | None, typer.Option("--dtype", help="Cast floating-point weights.")] = None,
    to: Annotated[
        Form, typer.Option("--to", help="hf: a folder for from_pretrained; torch: one file; dcp: torch's distributed.")
    ] = Form.HF,
    metric: Annotated[str | None, typer.Option("--metric", help="What best goes by; default: as the run's.")] = None,
    mode: Annotated[Mode | None, typer.Option("--mode", help="Whether less or more is better.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a checkpoint's weights, and what belongs to the model, to a new folder; verified on the way.

    Example: milepost export runs/quickstart best -o exported --dtype bf16
    """
    if is_checkpoint(run_dir):
        source = given_checkpoint(run_dir)
    else:
        source = named_checkpoint(existing_run(run_dir), which, metric, None if mode is None else mode.value)
    # By its name: what casts needs torch, which the command line does not load before it is needed.
    exporting = importlib.import_module("milepost.exporting")
    from milepost.storage.layout import is_weights_file
    from milepost.storage.manifest import read_manifest

    files = read_manifest(source).files
    total = sum(record.size for name, record in files.items() if is_weights_file(name))
    target = output.expanduser().absolute()
    with progress(total, shown=not as_json) as on_bytes:
        done = exporting.export(
            source, target, to=to.value, dtype=None if dtype is None else dtype.value, on_bytes=on_bytes
        )
    size = sum(done.files.values())
    if as_json:
        facts = {"source": str(source), "path": str(target), "to": to.value, "tensors": done.tensors}
        print_json({**facts, "cast": done.cast, "overflowed": done.overflowed, "size": size, "files": done.files})
        return
    if done.overflowed:
        typer.echo(f"warning: numbers too large for {dtype} became infinite in: {', '.join(done.overflowed)}", err=True)
    cast = f", {done.cast} of them cast to {dtype.value}" if dtype is not None else ""
    typer.echo(f"exported {source} to {target}: {done.tensors} tensors{cast}, {format_size(size)}")
