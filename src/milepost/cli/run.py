"""``milepost run``: train."""

from __future__ import annotations

import importlib
import shlex
from typing import Annotated

import typer

from milepost.cli.completing import config_names
from milepost.cli.reporting import DIVERGED, reports_errors, say_error
from milepost.errors import ConfigError, DivergedError

RECIPES = {"full": "milepost.recipes.full"}
SHORT_FOR = {"quickstart": ("full", "quickstart")}


def _recipe_names(incomplete: str) -> list[str]:
    return [name for name in (*RECIPES, *SHORT_FOR) if name.startswith(incomplete)]


@reports_errors
def run(
    recipe: Annotated[
        str,
        typer.Argument(help="full, or quickstart (short for: full --config quickstart).", autocompletion=_recipe_names),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value sets a key of the configuration, ~key drops one.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "-c", help="A shipped configuration's name, or a YAML file.", autocompletion=config_names
        ),
    ] = None,
) -> None:
    """Train with a recipe. The same command line again goes on where the run stopped.

    Exit status: 0 done, 1 failure, 2 usage or configuration, 3 diverged, 143 or 130 after a save on SIGTERM or Ctrl-C.

    Example: milepost run full --config my.yaml save_every_n_train_steps=200 optimizer.lr=1e-5
    """
    from milepost.recipes.spelling import nearest

    name, chosen = SHORT_FOR.get(recipe, (recipe, config))
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {recipe!r}{nearest(recipe, [*RECIPES, *SHORT_FOR])}")
    if recipe in SHORT_FOR and config is not None:
        raise ConfigError(f"{recipe} has its own configuration; use: milepost run {name} --config {config}")
    if chosen is None:
        raise ConfigError(f"the recipe {name} needs --config NAME_OR_FILE; `milepost configs` lists the shipped ones")
    loaded = _load(chosen, overrides or [])
    try:
        program = importlib.import_module(RECIPES[name])
    except ImportError as error:
        raise _missing(error) from error
    try:
        status = program.main(loaded, chosen)
    except DivergedError as error:
        say_error(str(error))
        if error.checkpoint is not None:
            typer.echo(f"\n    {_going_on(recipe, config, overrides or [], error)}", err=True)
        raise typer.Exit(DIVERGED) from None
    raise typer.Exit(status)


def _going_on(recipe: str, config: str | None, overrides: list[str], error: DivergedError) -> str:
    """The command line that goes on from the newest healthy checkpoint, leaving out what led astray."""
    kept = [each for each in overrides if not each.startswith(("resume=", "resume.from=", "resume.skip_samples="))]
    step = "" if error.checkpoint is None else error.checkpoint.name.removeprefix("step_")
    resume = f"resume={{from: {step}, skip_samples: {error.skip_samples}}}"
    return shlex.join(["milepost", "run", recipe, *([] if config is None else ["--config", config]), *kept, resume])


def _load(name: str, overrides: list[str]) -> object:
    from milepost.recipes.config_files import load_config

    return load_config(name, overrides)


def _missing(error: ImportError) -> Exception:
    if error.name is not None and error.name.split(".")[0] in ("transformers", "datasets", "tokenizers", "jinja2"):
        return ConfigError(f'the recipes need {error.name}, which is not installed: pip install "milepost[finetune]"')
    return error
