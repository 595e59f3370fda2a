"""``milepost run``: train."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from milepost.cli.reporting import reports_errors
from milepost.errors import ConfigError

RECIPES = {"full": "milepost.recipes.full"}
SHORT_FOR = {"quickstart": ("full", "quickstart")}


@reports_errors
def run(
    recipe: Annotated[str, typer.Argument(help="full, or quickstart (short for: full --config quickstart).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value sets a key of the configuration, ~key drops one.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", "-c", help="A shipped configuration's name, or a YAML file.")
    ] = None,
) -> None:
    """Train with a recipe. The same command line again goes on where the run stopped.

    Exit status: 0 done, 1 failure, 2 usage or configuration, 143 or 130 after a save on SIGTERM or Ctrl-C.

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
    raise typer.Exit(program.main(loaded, chosen))


def _load(name: str, overrides: list[str]) -> object:
    from milepost.recipes.config_files import load_config

    return load_config(name, overrides)


def _missing(error: ImportError) -> Exception:
    if error.name is not None and error.name.split(".")[0] in ("transformers", "datasets", "tokenizers", "jinja2"):
        return ConfigError(f'the recipes need {error.name}, which is not installed: pip install "milepost[finetune]"')
    return error
