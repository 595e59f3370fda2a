"""``milepost verify``: are the bytes what the manifests say?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milepost.cli.choosing import checkpoint_folder
from milepost.cli.completing import steps
from milepost.cli.progress import progress
from milepost.cli.reporting import FAILURE, existing_run, print_json, reports_errors
from milepost.storage.catalog import read_catalog
from milepost.storage.verify import verify_checkpoint


@reports_errors
def verify(
    run_dir: Annotated[Path, typer.Argument(help="The run's folder (output_dir).")],
    step: Annotated[
        int | None, typer.Argument(help="One checkpoint's step; all of them by default.", autocompletion=steps)
    ] = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="Compare sizes only, which reads nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare every file of a run's checkpoints with the digests in their manifests. Exit status 1 if any differs.

    Example: milepost verify runs/quickstart
    """
    run = existing_run(run_dir)
    if step is None:
        catalog = read_catalog(run)
        total = sum(checkpoint.size for checkpoint in catalog.checkpoints)
        folders = [catalog.folders[known] for known in sorted(catalog.folders)]
    else:
        folders, total = [checkpoint_folder(run, step)], 0
        total = sum(path.stat().st_size for path in folders[0].rglob("*") if path.is_file())
    with progress(total, shown=not as_json and not sizes) as on_bytes:
        problems = {
            folder: verify_checkpoint(folder, level="sizes" if sizes else "digests", on_bytes=on_bytes)
            for folder in folders
        }
    if as_json:
        print_json([{"path": str(folder), "problems": found} for folder, found in problems.items()])
    else:
        for folder, found in problems.items():
            typer.echo(f"{folder.name}: {'; '.join(found) or 'whole'}")
        if not problems:
            typer.echo(f"{run} has no checkpoints.")
    if any(problems.values()):
        raise typer.Exit(FAILURE)
