"""The ``milepost`` command: its verbs, and what becomes of errors."""

from __future__ import annotations

from typing import Annotated

import typer

from milepost.cli.configs import configs
from milepost.cli.demote import demote
from milepost.cli.diff import diff
from milepost.cli.export import export
from milepost.cli.log import log
from milepost.cli.ls import ls
from milepost.cli.pin import pin, unpin
from milepost.cli.plot import plot
from milepost.cli.prove import prove
from milepost.cli.prune import prune
from milepost.cli.run import run
from milepost.cli.save_now import save_now
from milepost.cli.show import show
from milepost.cli.undelete import undelete
from milepost.cli.validate import validate
from milepost.cli.verify import verify
from milepost.cli.why import why

app = typer.Typer(
    name="milepost",
    help="Step-based checkpointing for PyTorch training: run recipes, and look after folders of checkpoints.",
    epilog="Example: milepost run quickstart, then milepost ls runs/quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(prove)
app.add_typer(configs, name="configs")
app.command()(validate)
app.command()(ls)
app.command()(show)
app.command()(why)
app.command()(verify)
app.command()(prune)
app.command()(pin)
app.command()(unpin)
app.command()(demote)
app.command()(undelete)
app.command()(log)
app.command()(diff)
app.command()(export)
app.command()(plot)
app.command("save-now")(save_now)


def _print_version(asked: bool) -> None:
    if asked:
        from milepost import __version__

        typer.echo(f"milepost {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; ends the process with its exit status."""
    app()


if __name__ == "__main__":
    main()
