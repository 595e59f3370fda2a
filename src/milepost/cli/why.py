"""``milepost why``: why a checkpoint is there, or is there no more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from milepost.cli.reporting import FAILURE, age, existing_run, print_json, reports_errors
from milepost.cli.retention import AsJson, Keep, RunDir, given_rules, plan_of, stored_rules
from milepost.quantities import format_size
from milepost.storage.catalog import Catalog, read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.log import describe, read_log
from milepost.storage.trash import read_trash


@reports_errors
def why(
    run_dir: RunDir,
    step: Annotated[int | None, typer.Argument(help="The checkpoint's step; the newest one's by default.")] = None,
    keep: Keep = None,
    as_json: AsJson = False,
) -> None:
    """Say why a checkpoint was saved, why it is kept or will go, and what became of it.

    The rules are those of --keep, or of the run's stored configuration.

    Exit status: 0 it is there, 1 it is not (what became of it is said, if it is known), 2 usage.

    Example: milepost why runs/alpaca 1500
    """
    folder = existing_run(run_dir)
    rules = given_rules(keep)
    catalog = read_catalog(folder)
    wanted = step if step is not None else catalog.newest.step if catalog.newest is not None else None
    facts = _facts(folder, catalog, wanted, keep_rules=rules)
    if as_json:
        print_json(facts)
    else:
        typer.echo("\n".join(_lines(folder, facts)))
    if not facts["there"]:
        raise typer.Exit(FAILURE)


def _facts(folder: Path, catalog: Catalog, step: int | None, *, keep_rules: Any) -> dict[str, Any]:
    from milepost.recipes.rules import spell_keep_rule

    rules = keep_rules if keep_rules is not None else stored_rules(catalog.newest)
    run = RunFolder(folder)
    checkpoint = None if step is None else catalog.at(step)
    damaged = [entry.reason for entry in catalog.damaged if entry.step == step]
    trashed = [{"path": str(entry.path), "until": entry.until} for entry in read_trash(run) if entry.step == step]
    facts: dict[str, Any] = {
        "step": step,
        "there": checkpoint is not None,
        "damaged": damaged[0] if damaged else None,
        "rules": None if rules is None else [spell_keep_rule(rule) for rule in rules],
        "in_trash": trashed,
        "history": [
            {"time": event.time, "what": event.what, "why": event.why, "said": describe(event)}
            for event in read_log(run)
            if step is not None and event.step == step
        ],
    }
    if checkpoint is not None:
        decision = plan_of(folder, rules or ()).about(checkpoint)
        facts |= {
            "level": checkpoint.level.value,
            "size": checkpoint.size,
            "created": checkpoint.created,
            "saved_because": list(checkpoint.reasons),
            "kept_because": list(decision.reasons),
            "against": decision.against,
        }
    return facts


def _lines(folder: Path, facts: dict[str, Any]) -> list[str]:
    name = f"step_{facts['step']}"
    lines = []
    if facts["there"]:
        lines.append(f"{name}: {facts['level']}, {format_size(facts['size'])}, saved {age(facts['created'])} ago")
        lines.append(f"  saved because  {'; '.join(facts['saved_because']) or 'nobody said why'}")
        unknown = facts["rules"] is None and facts["kept_because"] == ["no rule: all are kept"]
        kept = "the run's rules are not known; say them with --keep" if unknown else "; ".join(facts["kept_because"])
        lines += [f"  kept because   {kept}"] if kept else []
        lines += [f"  but            {facts['against']}"] if facts["against"] and kept else []
        lines += [] if kept else [f"  will be pruned {facts['against']}"]
    elif facts["damaged"] is not None:
        lines.append(f"{name} is damaged: {facts['damaged']}")
    elif facts["in_trash"]:
        lines.append(f"{name} is in the trash; bring it back with: milepost undelete {folder} {facts['step']}")
    else:
        of_step = "" if facts["step"] is None else f" of step {facts['step']}"
        lines.append(f"{folder} has no checkpoint{of_step}.")
    lines += [f"  {age(event['time'])} ago  {event['said']}" for event in facts["history"]]
    if facts["rules"]:
        lines.append(f"  rules          {'; '.join(facts['rules'])}")
    return lines
