"""``milepost validate``: check a configuration without running it."""

from __future__ import annotations

from typing import Annotated

import typer

from milepost.cli.completing import config_names
from milepost.cli.reporting import print_json, reports_errors


@reports_errors
def validate(
    config: Annotated[
        str, typer.Argument(help="A YAML file, or a shipped configuration's name.", autocompletion=config_names)
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value or ~key, as for run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the resolved configuration as JSON.")] = False,
) -> None:
    """Check a configuration: keys, types, and settings that could never work. Exit status 2 if it is not sound.

    Example: milepost validate my.yaml save_every_n_train_steps=200
    """
    from milepost.recipes.config_files import load_config, resolved_yaml

    loaded = load_config(config, overrides or [])
    if as_json:
        print_json(loaded.model_dump(mode="json", by_alias=True))
        return
    typer.echo(f"{config} is sound. Resolved, with its defaults:\n")
    typer.echo(resolved_yaml(loaded), nl=False)
