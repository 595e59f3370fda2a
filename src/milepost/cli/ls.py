"""``milepost ls``: the checkpoints of a run."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from milepost.cli.ordering import ordered
from milepost.cli.reporting import age, existing_run, jsonable, print_json, reports_errors, score
from milepost.cli.retention import plan_of, stored_rules
from milepost.cli.table import table
from milepost.quantities import format_size
from milepost.records import Checkpoint
from milepost.storage.catalog import Catalog, read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.trash import Trashed, read_trash


@reports_errors
def ls(
    run_dir: Annotated[Path, typer.Argument(help="The run's folder (output_dir).")],
    sort: Annotated[
        str | None, typer.Option("--sort", help="Order by a metric, or by step, epoch, age or size; lowest first.")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Show so many; of an unsorted list the newest.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List a run's checkpoints, the newest last: step, epoch, age, size, level, scores, and why each is kept.

    Example: milepost ls runs/quickstart --sort val_loss --limit 5
    """
    folder = existing_run(run_dir)
    catalog = read_catalog(folder)
    why = _reasons(folder, catalog)
    trash = read_trash(RunFolder(folder))
    shown = ordered(catalog.checkpoints, sort=sort, reverse=reverse, limit=limit)
    if as_json:
        listed = _as_json(replace(catalog, checkpoints=shown), why)
        print_json({**listed, "trash": [_trashed(entry) for entry in trash]})
    elif not (catalog.checkpoints or catalog.damaged or catalog.ignored or trash):
        typer.echo(f"{folder} has no checkpoints.")
    else:
        _print_table(folder, catalog, shown, why)
        _print_trash(trash)


def _reasons(folder: Path, catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Why each checkpoint is kept, by the rules of the newest one's stored configuration, if it has one."""
    rules = stored_rules(catalog.newest)
    plan = plan_of(folder, rules or ())
    unknown = ("no rule: all are kept",)
    return {
        decision.checkpoint.id: () if rules is None and decision.reasons == unknown else decision.reasons
        for decision in plan.decisions
    }


def _print_table(folder: Path, catalog: Catalog, shown: Sequence[Checkpoint], why: dict[str, tuple[str, ...]]) -> None:
    metrics = list(dict.fromkeys(name for checkpoint in shown for name in sorted(checkpoint.metrics)))
    rows = [
        (
            str(checkpoint.step),
            "" if checkpoint.epoch is None else str(checkpoint.epoch),
            age(checkpoint.created),
            format_size(checkpoint.size),
            checkpoint.level.value,
            *(score(checkpoint.metrics[name]) if name in checkpoint.metrics else "" for name in metrics),
            "; ".join((*why.get(checkpoint.id, ()), *(["UNHEALTHY"] if checkpoint.healthy is False else []))),
        )
        for checkpoint in shown
    ]
    lines = (
        table(("step", "epoch", "age", "size", "level", *metrics, "kept because"), rows, left=("level",))
        if rows
        else []
    )
    total = sum(checkpoint.size for checkpoint in catalog.checkpoints)
    count = len(catalog.checkpoints)
    part = f"{len(shown)} of " if len(shown) < count else ""
    lines.append(f"{part}{count} checkpoint{'' if count == 1 else 's'}, {format_size(total)} in {folder}")
    lines += [f"damaged: {entry.path.name}: {entry.reason}" for entry in catalog.damaged]
    lines += [f"no checkpoint: {entry.path.name}: {entry.reason}" for entry in catalog.ignored]
    typer.echo("\n".join(lines))


def _print_trash(trash: Sequence[Trashed]) -> None:
    if trash:
        size = format_size(sum(entry.size for entry in trash))
        names = ", ".join(f"step_{entry.step}" for entry in trash[-8:])
        more = f"the last {min(len(trash), 8)} of {len(trash)}: " if len(trash) > 8 else ""
        width = shutil.get_terminal_size().columns
        typer.echo(textwrap.fill(f"in the trash: {size}, {more}{names}", width, break_on_hyphens=False))


def _trashed(entry: Trashed) -> dict[str, Any]:
    return {
        "step": entry.step,
        "path": str(entry.path),
        "size": entry.size,
        "since": entry.since,
        "until": entry.until,
        "why": entry.why,
    }


def _as_json(catalog: Catalog, why: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    return {
        "checkpoints": [
            {
                "step": checkpoint.step,
                "path": str(checkpoint.path),
                "epoch": checkpoint.epoch,
                "created": checkpoint.created,
                "size": checkpoint.size,
                "level": checkpoint.level.value,
                "metrics": {name: jsonable(value) for name, value in checkpoint.metrics.items()},
                "saved_because": list(checkpoint.reasons),
                "kept_because": list(why.get(checkpoint.id, ())),
                "pinned": checkpoint.pinned,
                "healthy": checkpoint.healthy,
                "serial": checkpoint.serial,
                "run_id": checkpoint.run_id,
            }
            for checkpoint in catalog.checkpoints
        ],
        "damaged": [{"path": str(entry.path), "reason": entry.reason} for entry in catalog.damaged],
        "ignored": [{"path": str(entry.path), "reason": entry.reason} for entry in catalog.ignored],
    }
