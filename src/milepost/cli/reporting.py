"""How verbs speak: errors as one paragraph and an exit status, results as tables or JSON."""

from __future__ import annotations

import functools
import json
import select
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer

from milepost.errors import CheckpointNotFoundError, ConfigError, MilepostError
from milepost.quantities import format_duration

P = ParamSpec("P")
R = TypeVar("R")

FAILURE, USAGE, DIVERGED, INTERRUPTED = 1, 2, 3, 130


def reports_errors(verb: Callable[P, R]) -> Callable[P, R]:
    """Turn a mistake of the user into a paragraph on stderr and an exit status: 2 for configuration, 1 for the rest."""
    return _reporting(verb, FAILURE)


def reports_errors_as_trouble(verb: Callable[P, R]) -> Callable[P, R]:
    """The same for verbs whose answer is their exit status: 1 means that things differ, and all errors are 2."""
    return _reporting(verb, USAGE)


def _reporting(verb: Callable[P, R], failure: int) -> Callable[P, R]:
    @functools.wraps(verb)
    def reporting(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return verb(*arguments, **options)
        except ConfigError as error:
            say_error(str(error))
            raise typer.Exit(USAGE) from None
        except (MilepostError, OSError) as error:
            if isinstance(error, BrokenPipeError) and _nobody_reads():
                raise
            say_error(str(error))
            raise typer.Exit(failure) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return reporting


def _nobody_reads() -> bool:
    # `milepost ls … | head` is no mistake. Asked of nothing, poll tells of errors alone.
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return bool(output.poll(0))


def say_error(message: str) -> None:
    """One paragraph on stderr, wrapped where a person reads it."""
    text = f"error: {message}"
    if sys.stderr.isatty():
        text = textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)
    typer.echo(text, err=True)


def print_json(value: Any) -> None:
    """Strict JSON on stdout: scores that are no numbers become texts."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def existing_run(folder: Path) -> Path:
    """The folder, absolute. Raises CheckpointNotFoundError if there is none."""
    path = folder.expanduser().absolute()
    if not path.is_dir():
        raise CheckpointNotFoundError(f"there is no run folder {path}. Name the output_dir of a run.", path=path)
    return path


def age(created: float) -> str:
    """Time since a moment (seconds since 1970), in its largest unit: ``3 h``."""
    return format_duration(max(0.0, time.time() - created))


def score(value: float) -> str:
    """A metric's value for a table."""
    return f"{value:.4g}"


def jsonable(value: float) -> float | str:
    """A number as JSON has it, or the name of one that JSON has not."""
    return value if value - value == 0 else str(value)
