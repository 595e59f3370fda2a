"""What saving and resuming cost: Milepost, the tools people use today, and the limits of memory and disk.

    python -m benchmarks.saving [--quick] [--pairs N] [--size-gb X] [--only NAME,...] [--folder DIR] [--json FILE]

Everything is measured interleaved: each round measures each limit and each method once, so that a machine that gets
slower or faster meets all alike, and figures are medians of what was paired within rounds. Ends with 1 only if
something failed to run.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.rounds import Plan


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.saving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and few: less than two minutes, no verdicts")
    parser.add_argument("--pairs", type=int, metavar="N", help="rounds (15; with --quick 2)")
    parser.add_argument("--peer-pairs", type=int, metavar="N", help="rounds in which other tools take part (7)")
    parser.add_argument("--first-peer-pairs", type=int, metavar="N", help="rounds of other tools' first saves (3)")
    parser.add_argument("--size-gb", type=float, metavar="X", help="size of the state (1.4; with --quick 0.06)")
    parser.add_argument("--alone-pairs", type=int, metavar="N", help="rounds with processes of their own (all)")
    parser.add_argument("--steps", type=int, metavar="N", help="least steps of a window of training (5)")
    parser.add_argument("--pause", type=float, metavar="S", help="seconds of rest after deletions (0.5)")
    parser.add_argument("--only", default="", metavar="NAME,...", help="methods and parts to measure; see --names")
    parser.add_argument("--names", action="store_true", help="print the names that --only takes")
    parser.add_argument("--folder", type=Path, default=Path(), metavar="DIR", help="where to write: which disk (here)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, after every round")
    chosen = parser.parse_args(given)
    small = chosen.quick
    for name, quick, full in (
        ("pairs", 2, 15),
        ("peer_pairs", 1, 7),
        ("first_peer_pairs", 0, 3),
        ("size_gb", 0.06, 1.4),
        ("alone_pairs", 1, chosen.pairs or 15),
        ("steps", 2, 5),
        ("pause", 0.05, 0.5),
    ):
        if getattr(chosen, name) is None:
            setattr(chosen, name, quick if small else full)
    if min(chosen.pairs, chosen.steps) < 1 or not 0 < chosen.size_gb < math.inf:
        parser.error("--pairs, --steps and --size-gb must be positive")
    return chosen


def chosen_names(only: str, known: list[str]) -> frozenset[str]:
    """The names that were asked for, or all. Raises ValueError for one that nobody knows."""
    wanted = [name for name in only.split(",") if name]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"--only {','.join(unknown)}: not known; the names are {', '.join(known)}")
    found = set(wanted or known)
    # Capture alone is the overlapped manager with another place to write to.
    return frozenset(found | {"milepost-overlapped"} if "milepost-capture" in found else found)


def plan_of(chosen: argparse.Namespace, names: frozenset[str], folder: Path) -> Plan:
    """What the command line asks for."""
    from benchmarks.rounds import Plan

    return Plan(
        folder=folder,
        state_bytes=int(chosen.size_gb * 1e9),
        pairs=chosen.pairs,
        peer_pairs=chosen.peer_pairs,
        first_peer_pairs=chosen.first_peer_pairs,
        alone_pairs=chosen.alone_pairs,
        least=chosen.steps,
        pause=chosen.pause,
        names=names,
    )


def measure(chosen: argparse.Namespace, names: frozenset[str], folder: Path) -> int:
    """Run all rounds and report."""
    from rich.console import Console

    from benchmarks import report
    from benchmarks.figures import Samples
    from benchmarks.rounds import Bench

    plan = plan_of(chosen, names, folder)
    console = Console(width=None if sys.stdout.isatty() else report.WIDTH)
    samples = Samples()
    facts: dict[str, Any] = {}
    begin = time.monotonic()

    def keep() -> None:
        facts["seconds"] = round(time.monotonic() - begin)
        facts["o_direct"] = bench.direct
        facts["spent"] = {what: round(seconds, 1) for what, seconds in bench.spent.items()}
        if chosen.json is not None:
            asked = {name: value for name, value in vars(chosen).items() if not isinstance(value, Path)}
            text = json.dumps(report.as_json(samples, facts, asked | {"names": sorted(names)}), indent=1)
            chosen.json.write_text(text + "\n")

    with progress(chosen.pairs) as (say, advance):
        bench = Bench(plan, say, samples)
        try:
            bench.open()
            facts |= report.environment(folder, bench.training.state_bytes, len(bench.training.tensors))
            for at in range(chosen.pairs):
                bench.round(at)
                advance()
                # An interrupted run of an hour is worth what it has measured.
                keep()
        except KeyboardInterrupt:
            console.print("interrupted; reporting what there is")
        finally:
            bench.close()
    keep()
    report.show(console, samples, facts, names)
    console.print(f"took {facts['seconds'] / 60:.1f} min")
    return 1 if samples.failures else 0


def progress(rounds: int) -> Any:
    """A context that gives two functions: one to say what is being done, one to count a round as done."""
    import contextlib

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    @contextlib.contextmanager
    def shown() -> Any:
        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        # Redrawn only when something is said: a thread that redraws would run beside what is timed.
        with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
            task = bar.add_task("starting", total=rounds)

            def say(text: str) -> None:
                bar.update(task, description=text, refresh=True)

            def advance() -> None:
                bar.update(task, advance=1, refresh=True)
                if not console.is_terminal:
                    finished, elapsed = bar.tasks[0].completed, bar.tasks[0].elapsed or 0.0
                    print(f"round {finished:g} of {rounds} done, {elapsed / 60:.1f} min", file=sys.stderr, flush=True)

            yield say, advance

    return shown()


def main() -> int:
    """Measure and report."""
    chosen = arguments()
    if sys.platform != "linux":
        print("this benchmark asks Linux for direct writes and for its page cache; it does not run elsewhere")
        return 1
    from benchmarks.catalog import METHODS
    from benchmarks.rounds import OTHERS

    known = [*(entry.name for entry in METHODS), *OTHERS]
    if chosen.names:
        print("\n".join(known))
        return 0
    try:
        names = chosen_names(chosen.only, known)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    free, needed = shutil.disk_usage(chosen.folder).free, 4 * chosen.size_gb * 1e9
    if free < needed:
        print(f"{chosen.folder.resolve()} has {free / 1e9:.1f} GB free; {needed / 1e9:.1f} GB are needed")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="milepost-bench-", dir=chosen.folder)).resolve()
    try:
        return measure(chosen, names, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
