"""``milepost show``: what a checkpoint's manifest says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from milepost.cli.choosing import checkpoint_folder
from milepost.cli.completing import steps
from milepost.cli.reporting import existing_run, jsonable, print_json, reports_errors, score
from milepost.quantities import format_size
from milepost.storage.manifest import Manifest, read_manifest

_WRITTEN = {"direct": "past the system's cache", "buffered": "through the system's cache"}


@reports_errors
def show(
    run_dir: Annotated[Path, typer.Argument(help="The run's folder (output_dir).")],
    step: Annotated[
        int | None, typer.Argument(help="The checkpoint's step; the newest one's by default.", autocompletion=steps)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show one checkpoint: when and why it was saved, its scores, its files and their sizes.

    Example: milepost show runs/quickstart 100
    """
    folder = checkpoint_folder(existing_run(run_dir), step)
    manifest = read_manifest(folder)
    facts = _facts(folder, manifest)
    if as_json:
        print_json({**facts, "files": {name: record.size for name, record in manifest.files.items()}})
        return
    facts["size"] = format_size(facts["size"])
    facts["created"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created))
    facts["metrics"] = ", ".join(f"{name} {score(value)}" for name, value in manifest.metrics.items()) or None
    facts["saved_because"] = "; ".join(manifest.reasons) or None
    facts["software"] = ", ".join(f"{name} {version}" for name, version in facts["software"].items()) or None
    facts["written"] = _WRITTEN.get(facts["written"], facts["written"])
    facts["ties"] = ", ".join(f"{name} = {kept}" for name, kept in manifest.ties.items()) or None
    for name, value in facts.items():
        if value is not None and (value is not False or name == "healthy"):
            typer.echo(f"{name.replace('_', ' '):14} {value}")
    typer.echo("files")
    for name, record in sorted(manifest.files.items()):
        typer.echo(f"  {format_size(record.size):>10}  {name}")


def _facts(folder: Path, manifest: Manifest) -> dict[str, Any]:
    checkpoint = manifest.as_checkpoint(folder)
    return {
        "path": str(folder),
        "step": manifest.step,
        "epoch": manifest.epoch,
        "level": manifest.level.value,
        "size": checkpoint.size,
        "created": manifest.created,
        "training_seconds": round(manifest.seconds, 3),
        "saved_because": list(manifest.reasons),
        "metrics": {name: jsonable(value) for name, value in manifest.metrics.items()},
        "pinned": manifest.pinned,
        "healthy": manifest.healthy,
        "damage": manifest.damage,
        "configuration": manifest.config,
        "run_id": manifest.run_id,
        "id": manifest.id,
        "serial": manifest.serial,
        "ties": dict(manifest.ties),
        "format": manifest.format_version,
        "software": {name: version for name, version in manifest.software.items() if name != "io"},
        "written": manifest.software.get("io"),
    }
