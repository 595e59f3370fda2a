"""What a shell completes: names of configurations, and steps of the run that was named before."""

from __future__ import annotations

from pathlib import Path

import typer


def config_names(incomplete: str) -> list[str]:
    """Shipped configurations that begin so."""
    from milepost.recipes.config_files import shipped_configs

    return [name for name in shipped_configs() if name.startswith(incomplete)]


def steps(context: typer.Context, incomplete: str) -> list[str]:
    """Steps of the run's checkpoints that begin so."""
    from milepost.storage.catalog import read_catalog

    try:
        folders = read_catalog(Path(str(context.params.get("run_dir"))).expanduser()).folders
    except OSError:
        return []
    return [str(step) for step in sorted(folders) if str(step).startswith(incomplete)]


def steps_and_words(context: typer.Context, incomplete: str) -> list[str]:
    """The same, and the words that mean a checkpoint."""
    return [word for word in ("best", "latest") if word.startswith(incomplete)] + steps(context, incomplete)
