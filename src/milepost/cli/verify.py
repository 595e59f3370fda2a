"""``milepost verify``: are the bytes what the manifests say?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from milepost.cli.choosing import checkpoint_folder
from milepost.cli.completing import steps
from milepost.cli.progress import progress
from milepost.cli.reporting import FAILURE, existing_run, print_json, reports_errors
from milepost.cli.retention import changing, checkpoint_at
from milepost.errors import CorruptCheckpointError
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import MANIFEST, WEIGHTS_INDEX
from milepost.storage.verify import verify_checkpoint


@reports_errors
def verify(
    run_dir: Annotated[Path, typer.Argument(help="The run's folder (output_dir).")],
    step: Annotated[
        int | None, typer.Argument(help="One checkpoint's step; all of them by default.", autocompletion=steps)
    ] = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="Compare sizes only, which reads nothing.")] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair-index", help="First rebuild a damaged model.safetensors.index.json from its shards."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare every file of a run's checkpoints with the digests in their manifests.

    Exit status: 0 all are whole, 1 something differs, 2 usage.

    Example: milepost verify runs/quickstart
    """
    run = existing_run(run_dir)
    repaired = _repair(run, step) if repair else []
    if step is None:
        catalog = read_catalog(run)
        total = sum(checkpoint.size for checkpoint in catalog.checkpoints)
        folders = [catalog.folders[known] for known in sorted(catalog.folders)]
    else:
        folders, total = [checkpoint_folder(run, step)], 0
        total = sum(path.stat().st_size for path in folders[0].rglob("*") if path.is_file())
    with progress(total, shown=not as_json and not sizes) as on_bytes:
        found = {folder: _problems(folder, sizes=sizes, on_bytes=on_bytes) for folder in folders}
    problems = {folder: faults for folder, faults in found.items() if faults is not None}
    _show(run, problems, repaired, as_json=as_json)
    if any(problems.values()):
        raise typer.Exit(FAILURE)


def _show(run: Path, problems: dict[Path, list[str]], repaired: list[Path], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"path": str(folder), "problems": faults, "repaired": folder in repaired}
                for folder, faults in problems.items()
            ]
        )
    else:
        for folder in repaired:
            typer.echo(f"{folder.name}: {WEIGHTS_INDEX} was rebuilt from the shards")
        for folder, faults in problems.items():
            typer.echo(f"{folder.name}: {'; '.join(faults) or 'whole'}")
        if not problems:
            typer.echo(f"{run} has no checkpoints.")


def _repair(run: Path, step: int | None) -> list[Path]:
    from milepost.storage.weights_index import repair_index

    with changing(run) as (folder, backend):
        chosen = read_catalog(run).checkpoints if step is None else (checkpoint_at(folder, step)[1],)
        repaired = []
        for checkpoint in chosen:
            with suppress(CorruptCheckpointError):
                # What is damaged beside the index is told of below.
                if repair_index(folder, backend, checkpoint.path):
                    repaired.append(checkpoint.path)
        return repaired


def _problems(folder: Path, *, sizes: bool, on_bytes: Callable[[int], None]) -> list[str] | None:
    """The faults of a checkpoint; None if it was pruned meanwhile."""
    while True:
        before = _manifest_bytes(folder)
        try:
            faults = verify_checkpoint(folder, level="sizes" if sizes else "digests", on_bytes=on_bytes)
        except FileNotFoundError:
            faults = None
        # Beside a live run: a checkpoint that went, or lost its training state, while it was read is not damaged.
        if faults == [] or _manifest_bytes(folder) == before:
            return faults


def _manifest_bytes(folder: Path) -> bytes | None:
    try:
        return (folder / MANIFEST).read_bytes()
    except OSError:
        return None
