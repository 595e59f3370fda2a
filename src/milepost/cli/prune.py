"""``milepost prune``: take away what no rule keeps; by default only say what would go."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from milepost.cli.reporting import existing_run, print_json, reports_errors
from milepost.cli.retention import AsJson, Keep, RunDir, changing, given_rules, parsed_duration, plan_of, stored_rules
from milepost.cli.retention import stored_settings as settings_of
from milepost.cli.table import table
from milepost.errors import ConfigError
from milepost.policy.plan import Decision, KeepRule, RetentionPlan
from milepost.quantities import format_duration, format_size
from milepost.records import Checkpoint
from milepost.storage.catalog import read_catalog
from milepost.storage.edits import editing


@reports_errors
def prune(
    run_dir: RunDir,
    keep: Keep = None,
    keep_last: Annotated[int | None, typer.Option("--keep-last", help="Short for --keep last=N.")] = None,
    keep_best: Annotated[
        list[str] | None, typer.Option("--keep-best", metavar="N:METRIC", help="Short for --keep best=N,metric=METRIC.")
    ] = None,
    grace: Annotated[
        str | None, typer.Option("--trash-grace", help="How long it can be undeleted; by default as in the run.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without, nothing is changed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the rules keep, demote and prune, why, and the bytes that it frees; with --apply, do it.

    Without --keep, the rules are those of the run's stored configuration; without any rule it is refused. The newest
    checkpoint, the newest that can be resumed, and pinned ones always stay. It may be used beside a live run.

    Exit status: 0 done or shown, 1 failure, 2 usage, or no rules.

    Example: milepost prune runs/alpaca --keep last=3 --keep best=1,metric=val_loss,level=weights --apply
    """
    folder = existing_run(run_dir)
    texts = [*(keep or []), *([] if keep_last is None else [f"last={keep_last}"]), *map(_best, keep_best or [])]
    newest = read_catalog(folder).newest
    rules = given_rules(texts) or stored_rules(newest)
    if not rules:
        raise ConfigError(
            f"no rule says what to keep in {folder}, so all is kept. Name rules: --keep last=3 "
            "--keep best=1,metric=val_loss"
        )
    kept_for = _grace(grace, newest)
    plan = _apply(folder, rules, kept_for) if apply else plan_of(folder, rules)
    if as_json:
        print_json(_as_json(plan, rules, applied=apply))
        return
    typer.echo("\n".join(_lines(plan, rules, applied=apply)))
    if kept_for and plan.prune:
        typer.echo(f"What is pruned stays in the trash for {format_duration(kept_for)}, and takes its bytes as long.")


def _best(text: str) -> str:
    number, colon, metric = text.partition(":")
    if not colon:
        raise ConfigError(f"--keep-best {text!r} must be like 2:val_loss", key="--keep-best", value=text)
    return f"best={number},metric={metric}"


def _grace(text: str | None, newest: Checkpoint | None) -> float:
    if text is not None:
        return parsed_duration(text, "--trash-grace")
    section = (settings_of(newest) or {}).get("checkpoint")
    stored = section.get("trash_grace", 0) if isinstance(section, dict) else 0
    return parsed_duration(stored, "checkpoint.trash_grace")


def _apply(folder: Path, rules: list[KeepRule], grace: float) -> RetentionPlan:
    from milepost.keeping import Keeper

    with changing(folder) as (run, backend), editing(run):
        newest = read_catalog(run.path).newest
        keeper = Keeper(run, backend, tuple(rules), grace=grace)
        plan = keeper.plan(None if newest is None else newest.run_id)
        keeper.act(plan)
        return plan


def _what(decision: Decision) -> str:
    if not decision.reasons:
        return "prune"
    return "demote" if decision.level is not decision.checkpoint.level else "keep"


def _lines(plan: RetentionPlan, rules: list[KeepRule], *, applied: bool) -> list[str]:
    from milepost.recipes.rules import spell_keep_rule

    rows = []
    for decision in plan.decisions:
        what = _what(decision)
        why = decision.against if what == "prune" else "; ".join(decision.reasons)
        if what == "demote":
            why = f"{why} ({decision.against})"
        level = decision.checkpoint.level.value if what != "demote" else f"→ {decision.level.value}"
        freed = format_size(decision.freed) if decision.freed else ""
        rows.append((str(decision.checkpoint.step), what, level, freed, why))
    lines = [f"rules: {'; '.join(map(spell_keep_rule, rules))}"]
    if rows:
        lines += table(("step", "what", "level", "frees", "because"), rows, left=("what", "level"))
    number = {what: sum(1 for decision in plan.decisions if _what(decision) == what) for what in ("prune", "demote")}
    freed = format_size(sum(decision.freed for decision in plan.decisions))
    done = "pruned and" if applied else "to prune and"
    demoted = "demoted" if applied else "to demote"
    total = f"{number['prune']} {done} {number['demote']} {demoted} of {len(rows)}, which frees {freed}" + (
        "" if applied else "; nothing was changed, --apply does it"
    )
    return [*lines, *textwrap.wrap(total, shutil.get_terminal_size().columns, break_on_hyphens=False)]


def _as_json(plan: RetentionPlan, rules: list[KeepRule], *, applied: bool) -> dict[str, Any]:
    from milepost.recipes.rules import spell_keep_rule

    return {
        "applied": applied,
        "rules": [spell_keep_rule(rule) for rule in rules],
        "frees": sum(decision.freed for decision in plan.decisions),
        "checkpoints": [
            {
                "step": decision.checkpoint.step,
                "path": str(decision.checkpoint.path),
                "what": _what(decision),
                "level": decision.checkpoint.level.value,
                "level_then": decision.level.value if decision.reasons else None,
                "kept_because": list(decision.reasons),
                "against": decision.against,
                "frees": decision.freed,
            }
            for decision in plan.decisions
        ],
    }
