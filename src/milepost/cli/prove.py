"""``milepost prove``: is a run that is killed and resumed the same as one that is not, here and with this recipe?"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from milepost.cli.completing import config_names
from milepost.cli.reporting import FAILURE, print_json, reports_errors
from milepost.errors import CheckpointExistsError, MilepostError
from milepost.quantities import format_size

if TYPE_CHECKING:
    from milepost.recipes.proving import Proof


@reports_errors
def prove(
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value or ~key, as for run.")] = None,
    config: Annotated[
        str,
        typer.Option(
            "--config", "-c", help="A shipped configuration's name, or a YAML file.", autocompletion=config_names
        ),
    ] = "quickstart",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Keep both runs in this new folder; else none is kept.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what the runs print.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train twice, once without a break and once killed twice by SIGKILL and resumed, and compare bit for bit.

    Exit status: 0 both ended the same, 1 they did not (the first difference is printed), 2 configuration.

    Example: milepost prove --config my.yaml max_steps=100
    """
    from milepost.recipes.config_files import load_config
    from milepost.recipes.proving import prove as try_it
    from milepost.recipes.proving import recipe_trial

    # Before anything runs: a mistake in it is told as such.
    load_config(config, overrides or [])
    folder = _folder(output)
    trials = [
        recipe_trial(folder / name, config, overrides or [], quiet=as_json or not verbose)
        for name in ("unbroken", "interrupted")
    ]
    try:
        proof = try_it(trials[0], trials[1], (lambda _: None) if as_json else typer.echo)
    except MilepostError as error:
        raise MilepostError(f"{error} (what there is of both runs is in {folder})") from error
    if as_json:
        print_json({**_as_json(proof), "folder": str(folder)})
    else:
        typer.echo(_sentence(proof))
    if output is None and proof.holds:
        shutil.rmtree(folder)
    elif not as_json:
        typer.echo(f"both runs are in {folder}")
    if not proof.holds:
        raise typer.Exit(FAILURE)


def _folder(output: Path | None) -> Path:
    if output is None:
        return Path(tempfile.mkdtemp(prefix="milepost-prove-"))
    folder = output.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointExistsError(f"{folder} exists already and is not empty; name another folder", path=folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _sentence(proof: Proof) -> str:
    if proof.difference is not None:
        return f"NOT the same. The first difference: {proof.difference}"
    if not proof.kills:
        return "Nothing is proved: the run was over before it could be killed. Give it more steps."
    tensors = 0 if proof.comparison is None else sum(proof.comparison.compared.values())
    size = format_size(0 if proof.comparison is None else proof.comparison.size)
    times = "once" if len(proof.kills) == 1 else "twice"
    return (
        f"The same, bit for bit, at step {proof.step} after having been killed {times}: {tensors} tensors of weights, "
        f"optimizer and generators ({size}), the rest of the training state, and {proof.losses} logged losses."
    )


def _as_json(proof: Proof) -> dict[str, Any]:
    return {
        "equal": proof.difference is None,
        "step": proof.step,
        "kills": proof.kills,
        "first_difference": proof.difference,
        "compared": {} if proof.comparison is None else proof.comparison.compared,
        "losses": proof.losses,
    }
