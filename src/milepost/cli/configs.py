"""``milepost configs``: the configurations that come with Milepost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milepost.cli.reporting import print_json, reports_errors
from milepost.errors import ConfigError

configs = typer.Typer(
    help="List the shipped configurations, print one, or copy one to edit.\n\n"
    "Example: milepost configs copy quickstart my.yaml",
    rich_markup_mode=None,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@configs.callback(invoke_without_command=True)
@reports_errors
def list_configs(context: typer.Context, as_json: AsJson = False) -> None:
    """List them."""
    if context.invoked_subcommand is not None:
        return
    shipped = _shipped()
    if as_json:
        print_json([{"name": name, "about": _about(text)} for name, text in shipped.items()])
        return
    width = max(map(len, shipped))
    for name, text in shipped.items():
        typer.echo(f"{name:{width}}  {_about(text)}")


@configs.command()
@reports_errors
def cat(name: Annotated[str, typer.Argument(help="A name that `milepost configs` lists.")]) -> None:
    """Print one.

    Example: milepost configs cat quickstart
    """
    typer.echo(_text(name), nl=False)


@configs.command()
@reports_errors
def copy(
    name: Annotated[str, typer.Argument(help="A name that `milepost configs` lists.")],
    to: Annotated[Path | None, typer.Argument(help="The new file; by default the name's last part here.")] = None,
) -> None:
    """Write one to a file of your own.

    Example: milepost configs copy llama3/8B_full_single_device my.yaml
    """
    text = _text(name)
    path = to if to is not None else Path(f"{name.rsplit('/', 1)[-1]}.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; name another file") from None
    typer.echo(f"wrote {path}; check it with: milepost validate {path}")


def _shipped() -> dict[str, str]:
    from milepost.recipes.config_files import shipped_configs

    return shipped_configs()


def _text(name: str) -> str:
    from milepost.recipes.spelling import nearest

    shipped = _shipped()
    if name not in shipped:
        raise ConfigError(f"there is no shipped configuration {name!r}{nearest(name, shipped)}")
    return shipped[name]


def _about(text: str) -> str:
    return text.splitlines()[0].lstrip("# ")
