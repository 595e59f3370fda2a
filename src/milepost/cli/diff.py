"""``milepost diff``: in what two checkpoints differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from milepost.cli.naming import given_checkpoint, named_checkpoint
from milepost.cli.progress import progress
from milepost.cli.reporting import FAILURE, existing_run, jsonable, print_json, reports_errors_as_trouble, score
from milepost.cli.table import table
from milepost.quantities import format_size
from milepost.records import Checkpoint
from milepost.storage.catalog import find_checkpoint

if TYPE_CHECKING:
    from milepost.comparing import Comparison, TensorDifference, ValueDifference

_SHOWN = 20


@reports_errors_as_trouble
def diff(
    first: Annotated[str, typer.Argument(metavar="RUN_DIR|A", help="A run's folder, or a checkpoint's.")],
    second: Annotated[str, typer.Argument(metavar="A|B", help="A step of that run, latest, best; or a checkpoint's.")],
    third: Annotated[str | None, typer.Argument(metavar="[B]", help="Likewise, within a run.")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="Compare the weights only.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every tensor and value that differs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two checkpoints bit for bit: every tensor, and the values of the training state.

    Exit status: 0 they are equal, 1 they differ, 2 an error. Tensors are verified and read piece by piece.

    Example: milepost diff runs/quickstart 50 latest
    """
    from milepost.comparing import bytes_to_read, compare

    if third is None:
        paths = given_checkpoint(Path(first)), given_checkpoint(Path(second))
    else:
        run = existing_run(Path(first))
        paths = named_checkpoint(run, second), named_checkpoint(run, third)
    total = bytes_to_read(*paths, weights_only=weights)
    with progress(total, shown=not as_json) as on_bytes:
        found = compare(*paths, weights_only=weights, on_bytes=on_bytes)
    checkpoints = find_checkpoint(paths[0])[0], find_checkpoint(paths[1])[0]
    if as_json:
        print_json(_as_json(checkpoints, found))
    else:
        _print(checkpoints, found, everything)
    if not found.equal:
        raise typer.Exit(FAILURE)


def _print(checkpoints: tuple[Checkpoint, Checkpoint], found: Comparison, everything: bool) -> None:
    for name, each in zip("AB", checkpoints, strict=True):
        typer.echo(f"{name}  {each.path} ({each.level.value}, {format_size(each.size)})")
    typer.echo()
    for name in dict.fromkeys([*checkpoints[0].metrics, *checkpoints[1].metrics]):
        scores = [score(each.metrics[name]) if name in each.metrics else "none" for each in checkpoints]
        typer.echo(f"{name}: {scores[0]} → {scores[1]}")
    if found.equal:
        typer.echo(f"equal, bit for bit: {sum(found.compared.values())} tensors, {format_size(found.size)}")
        return
    by_part = Counter(each.part for each in found.tensors)
    for part, count in found.compared.items():
        if count:
            typer.echo(f"{part}: {by_part[part]} of {count} tensors differ")
    if found.generators:
        typer.echo(f"random number generators: different ({', '.join(_entries(found.generators))})")
    elif found.states:
        typer.echo("random number generators: the same")
    _print_values(found.values, everything)
    _print_tensors([each for each in found.tensors if everything or each.part == "weights"], everything)


def _entries(names: list[str]) -> list[str]:
    # Of Python's generator there are hundreds of numbers.
    return list(dict.fromkeys(".".join(name.split(".")[:2]) for name in names))


def _print_values(values: list[ValueDifference], everything: bool) -> None:
    if not values:
        return
    shown = values if everything else values[:_SHOWN]
    typer.echo()
    width = max(len(each.path) for each in shown)
    for each in shown:
        typer.echo(f"{each.path:{width}}  {_short(each.values[0])} → {_short(each.values[1])}")
    if len(shown) < len(values):
        typer.echo(f"and {len(values) - len(shown)} more values (--all shows them)")


def _print_tensors(tensors: list[TensorDifference], everything: bool) -> None:
    if not tensors:
        return
    # Those that differ most come first; NaN is more than any number.
    ordered = sorted(tensors, key=lambda each: -each.relative if each.relative == each.relative else -float("inf"))
    shown = ordered if everything else ordered[:_SHOWN]
    rows = [
        (
            f"{each.share:.1%}" if each.items else "",
            *("" if number is None else f"{number:.3g}" for number in (each.largest, each.distance, *each.norms)),
            each.name + (f" ({each.fault})" if each.fault else ""),
        )
        for each in shown
    ]
    typer.echo()
    typer.echo("\n".join(table(("changed", "max |A-B|", "‖A-B‖", "‖A‖", "‖B‖", "tensor"), rows)))
    if len(shown) < len(ordered):
        typer.echo(f"and {len(ordered) - len(shown)} more (--all shows them)")


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _as_json(checkpoints: tuple[Checkpoint, Checkpoint], found: Comparison) -> dict[str, Any]:
    return {
        "equal": found.equal,
        "a": str(checkpoints[0].path),
        "b": str(checkpoints[1].path),
        "compared": {part.replace(" ", "_"): count for part, count in found.compared.items()},
        "tensors": [_tensor_as_json(each) for each in found.tensors],
        "values": [{"path": each.path, "a": each.values[0], "b": each.values[1]} for each in found.values],
        "generators": _entries(found.generators),
        "metrics": {
            name: {key: jsonable(value) for key, value in each.metrics.items()}
            for name, each in zip("ab", checkpoints, strict=True)
        },
    }


def _tensor_as_json(each: TensorDifference) -> dict[str, Any]:
    numbers = {"max_abs_difference": each.largest, "difference_norm": each.distance}
    numbers |= {"a_norm": each.norms[0], "b_norm": each.norms[1]}
    return {
        "part": each.part.replace(" ", "_"),
        "name": each.name,
        "fault": each.fault,
        "shape": list(each.shape),
        "changed": each.changed,
        "changed_fraction": each.share,
        **{name: None if number is None else jsonable(number) for name, number in numbers.items()},
        "first_index": None if each.index is None else list(each.index),
    }
