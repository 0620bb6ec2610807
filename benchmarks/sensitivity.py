"""Change each threshold of the diagnosis by 20 % and list the changed verdicts; `make sensitivity`.

Jobs are decoded and replayed once; only the diagnosis, the budget and the search for late ranks run
again, with those thresholds that they have read for the job, because no other threshold can change
its verdict.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from app.analysis import arrivals, budget, diagnosis
from app.analysis.arrivals.build import arrivals_of
from app.analysis.budget.split import budget_of, split
from app.analysis.diagnosis.diagnose import diagnose
from app.analysis.diagnosis.headline import headline
from app.analysis.diagnosis.locations import JobFacts, Worker
from app.analysis.diagnosis.named_causes import all_causes
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.verdict import verdict
from app.analysis.replay.fidelity import DISCREPANCY_LIMIT
from app.analysis.replay.metrics import Metrics, measure
from app.analysis.replay.no_verdict import unseen_waiting
from app.analysis.replay.session import Replayed, prepare_replay
from app.analysis.synthesis.random_sessions import CAUSES
from app.analysis.synthesis.scenarios import ALL_SCENARIOS
from app.analysis.trace.model import Trace
from app.cli.analyze import read_trace
from benchmarks.score import draw_kind

PAGE: Final = Path("docs/diagnosis.md")
BEGIN, END = "<!-- sensitivity -->", "<!-- end of sensitivity -->"
FACTORS: Final = (0.8, 1.2)
# Scenarios, which are plain cases, and drawn jobs of each cause, many of which are slightly slow.
_DRAWN: Final = {
    f"{cause or 'healthy'} {seed}": (seed, cause)
    for cause in (*CAUSES, None)
    for seed in range(11, 15)
}
SYNTHETIC: Final = (*ALL_SCENARIOS, *_DRAWN)


# Modules with thresholds: causes within steps and between them, and late ranks at collectives.
_PACKAGES: Final = (diagnosis, budget, arrivals)


class Verdict(NamedTuple):
    """The part of a verdict that must not depend on a constant: level, first cause, workers."""

    level: str
    cause: str | None
    workers: tuple[Worker, ...]


class WaitedFor(NamedTuple):
    """The same for ranks at collectives: the rank that others wait for, if any."""

    rank: int | None


class Threshold(NamedTuple):
    """A field of the thresholds of a module."""

    module: str
    name: str


class Change(NamedTuple):
    """A job whose verdict changes with a changed threshold."""

    threshold: Threshold
    factor: float
    job: str


class _Recorded:
    """Thresholds that record which of their fields are read."""

    def __init__(self, module: ModuleType, read: set[Threshold]) -> None:
        self._thresholds, self._module, self._read = module.THRESHOLDS, module.__name__, read

    def __getattr__(self, name: str) -> object:
        self._read.add(Threshold(self._module, name))
        return getattr(self._thresholds, name)


def thresholds() -> dict[str, Any]:
    """Return all thresholds, by module."""
    names = [
        entry.name
        for package in _PACKAGES
        for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    modules = {name: importlib.import_module(name) for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "THRESHOLDS")}


def judge(trace: Trace, replayed: Replayed, metrics: Metrics) -> Verdict:
    """Return the verdict in the report of a session."""
    diagnosis = diagnose(Observation(trace, replayed.main), replayed, metrics)
    unseen = unseen_waiting(replayed.layout)
    causes = () if unseen else diagnosis.causes_within(DISCREPANCY_LIMIT)
    shown = headline(metrics, (metrics.slowdown, metrics.slowdown), diagnosis, causes)
    job = JobFacts(
        trace.meta.hosts,
        replayed.layout.ranks.tolist(),
        by_optype={
            name: float(metrics.relative(time_s)) for name, time_s in metrics.by_optype.items()
        },
    )
    withheld = None if unseen is None else unseen.verdict
    shares = budget_of(split(replayed, metrics)).shares
    said = verdict(
        job,
        metrics,
        causes,
        shown,
        DISCREPANCY_LIMIT,
        shares=shares,
        between=diagnosis.between,
        turn_s=diagnosis.turn_s,
        withheld=withheld,
    )
    every = all_causes(causes, diagnosis.between, diagnosis.lost_s)
    if not every:
        return Verdict(said.level, None, ())
    return Verdict(said.level, every[0].cause, every[0].where.workers)


def waited_for(trace: Trace, replayed: Replayed) -> WaitedFor:
    """Return the rank that others wait for, as in the report of a session."""
    arrivals = arrivals_of(trace, replayed.steps.tolist()).arrivals
    return WaitedFor(arrivals.worst.rank if arrivals is not None and arrivals.straggles else None)


@contextmanager
def standing_in(module: ModuleType, thresholds: object) -> Iterator[None]:
    """Replace the thresholds of a module while the context is open."""
    own = module.THRESHOLDS
    module.THRESHOLDS = thresholds  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.THRESHOLDS = own  # type: ignore[attr-defined]


def moved(value: float, factor: float) -> float:
    """Return a threshold times a factor; a count changes by at least one."""
    if isinstance(value, int):
        return value + max(round(abs(value * (factor - 1))), 1) * (1 if factor > 1 else -1)
    return value * factor


def changes_of(job: str, folders: Sequence[Path]) -> list[Change]:
    """Return the changed verdicts of a job."""
    trace = _trace(job, folders)
    replayed = prepare_replay(trace)
    metrics = measure(replayed)
    judges: tuple[Callable[[], NamedTuple], ...] = (
        lambda: judge(trace, replayed, metrics),
        lambda: waited_for(trace, replayed),
    )
    return [change for judge_ in judges for change in _changes(job, judge_)]


def _changes(job: str, judged: Callable[[], NamedTuple]) -> Iterator[Change]:
    """Yield the changes that change the verdict, among the thresholds that the analysis reads."""
    modules, read = thresholds(), set[Threshold]()
    own = {name: module.THRESHOLDS for name, module in modules.items()}
    for module in modules.values():
        module.THRESHOLDS = _Recorded(module, read)
    try:
        usual = judged()
    finally:
        for name, module in modules.items():
            module.THRESHOLDS = own[name]
    for threshold in sorted(read):
        values = own[threshold.module]
        for factor in FACTORS:
            value = moved(getattr(values, threshold.name), factor)
            other = replace(values, **{threshold.name: value})
            with standing_in(modules[threshold.module], other):
                if judged() != usual:
                    yield Change(threshold, factor, job)


def recorded(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the recorded traces in folders, by name."""
    patterns = ("*.ndjson", "*.ndjson.gz", "*.parquet")
    return {
        path.name.split(".")[0]: path
        for folder in folders
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
    }


def _trace(job: str, folders: Sequence[Path]) -> Trace:
    if job in ALL_SCENARIOS:
        return ALL_SCENARIOS[job].synthesize(1).trace
    if job in _DRAWN:
        return draw_kind(*_DRAWN[job]).session.trace
    path = recorded(folders)[job]
    meta = path.with_name(path.stem.replace("trace", "meta") + ".yaml")
    return read_trace(path, meta if meta.exists() else None)


def table(changes: Sequence[Change], real: int) -> str:
    """Return a table of the thresholds that change a verdict, and the number of the others."""
    every = {
        Threshold(module, field.name)
        for module, values in thresholds().items()
        for field in fields(values.THRESHOLDS)
    }
    changing = sorted({change.threshold for change in changes})
    unmoved = len(every) - len(changing)
    counted = f"{real} recorded jobs and {len(SYNTHETIC)} synthetic ones"
    lines = [
        f"{counted}; {unmoved} of {len(every)} thresholds change no verdict. The others:",
        "",
        "| threshold | −20 % | +20 % |",
        "| --- | --- | --- |",
    ]
    for threshold in changing:
        cells = [
            [change.job for change in changes if change[:2] == (threshold, factor)]
            for factor in FACTORS
        ]
        module = threshold.module.removeprefix("app.analysis.").removeprefix("diagnosis.")
        name = f"{module}.{threshold.name}"
        shown = (f"{len(jobs)}: {', '.join(jobs)}" if jobs else "0" for jobs in cells)
        lines.append(f"| `{name}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table into docs/diagnosis.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="folders with recorded traces")
    folders = parser.parse_args().folders
    real = recorded(folders)
    with get_context("spawn").Pool() as pool:
        results = pool.map(partial(changes_of, folders=folders), [*real, *SYNTHETIC], chunksize=1)
    text = table([change for of_job in results for change in of_job], len(real))
    page = PAGE.read_text()
    before, after = page[: page.index(BEGIN)], page[page.index(END) :]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{after}")
    print(text)


if __name__ == "__main__":
    main()
