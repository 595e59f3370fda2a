"""``milepost plot``: a run's numbers over its steps, as a picture or as text."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from milepost.cli.chart import chart
from milepost.cli.reporting import existing_run, jsonable, print_json, reports_errors
from milepost.errors import ConfigError, MilepostError
from milepost.series import Series, read_series
from milepost.storage.layout import new_id


@reports_errors
def plot(
    run_dir: Annotated[Path, typer.Argument(help="The run's folder (output_dir).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The picture: .png, .svg or .pdf. Needs matplotlib.")
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metric", help="What to show, any number of them; default: loss and scores.")
    ] = None,
    as_text: Annotated[bool, typer.Option("--ascii", help="Print it as text instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show a run's loss and scores over its steps, saved steps marked.

    Example: milepost plot runs/quickstart -o loss.png
    """
    if output is None and not (as_text or as_json):
        raise ConfigError("say where the picture goes, -o loss.png, or --ascii for one as text")
    folder = existing_run(run_dir)
    series = read_series(folder, metrics or [])
    if not any(series.numbers.values()):
        raise MilepostError(f"{folder} has neither a metrics.jsonl nor checkpoints with scores: nothing to show")
    if output is not None:
        _draw(series, output.expanduser().absolute(), folder.name)
    if as_json:
        numbers = {
            name: [[step, jsonable(value)] for step, value in each.items()] for name, each in series.numbers.items()
        }
        print_json({"metrics": numbers, "saved": series.saved, "unhealthy": series.unhealthy})
    elif as_text:
        typer.echo("\n".join(chart(series)))
    elif output is not None:
        typer.echo(f"wrote {output}")


def _draw(series: Series, path: Path, title: str) -> None:
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"{path.name}: a picture's name ends in .png, .svg or .pdf")
    try:
        figure = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise ConfigError(
            'pictures need matplotlib, which is not installed: pip install "milepost[plot]"; --ascii prints one as text'
        ) from None
    groups = _groups(series)
    picture = figure(figsize=(8, 1 + 3 * len(groups)), layout="constrained")
    for at, names in enumerate(groups, start=1):
        _draw_group(picture.add_subplot(len(groups), 1, at), series, names)
    picture.suptitle(title)
    # A picture that could not be finished leaves the one before it as it was.
    draft = path.with_name(f".{path.stem}.{new_id()}{path.suffix}")
    try:
        picture.savefig(draft, dpi=150)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _groups(series: Series) -> list[list[str]]:
    """Metrics that share a pair of axes: all losses, and every other one alone."""
    losses = [name for name in series.numbers if name.endswith("loss")]
    return ([losses] if losses else []) + [[name] for name in series.numbers if name not in losses]


def _draw_group(axes: Any, series: Series, names: Sequence[str]) -> None:
    for step in series.saved:
        axes.axvline(step, color="tab:red" if step in series.unhealthy else "0.85", linewidth=1, zorder=0)
    for name in names:
        values = series.numbers[name]
        # Few points, such as scores of validation, are seen better as points.
        axes.plot(
            [*values],
            [*values.values()],
            label=name,
            linewidth=1.2,
            marker="o" if len(values) < 60 else None,
            markersize=3,
        )
    if series.saved:
        axes.plot([], [], color="0.85", label="saved")
    axes.set_xlabel("step")
    axes.legend()
