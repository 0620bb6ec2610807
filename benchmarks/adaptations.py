"""Which adaptations fire on random jobs that run as the paper has it; `make adaptations`.

None may where the job does not call for it. What calls for some: a host that launches late holds up
what is posted after its computations, regularly; so do kernels that wait for others.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from app.analysis.diagnosis.causes.host_overhead import HOST_OVERHEAD
from app.analysis.diagnosis.causes.kernel_dependency import KERNEL_DEPENDENCY
from app.analysis.diagnosis.causes.uneven_microbatches import UNEVEN_MICROBATCHES
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.job import JobModel, Range, draw_job, stream
from app.analysis.synthesis.random_sessions import CAUSES, Goal, afflict, needs_of

HEALTHY: Final = "none"
# What the jobs of a cause call for: their launches are late regularly.
CALLED_FOR: Final[Mapping[str, frozenset[Name]]] = {
    HOST_OVERHEAD.name: frozenset(
        {
            Name.GATHERED_FIRST,
            Name.BLOCKING_TRANSFERS,
            Name.POSTED_IN_TURN,
            Name.REGULAR_DELAYS,
        }
    ),
    KERNEL_DEPENDENCY.name: frozenset({Name.REGULAR_DELAYS}),
    UNEVEN_MICROBATCHES.name: frozenset({Name.PADDED_MICROBATCHES}),
}
# Small, so that a thousand take minutes; adaptations look at lanes, not at how many there are.
_SIZES: Final = Range(
    dp=(1, 2, 3, 4), pp=(1, 2, 3, 4, 6), most_microbatches=12, most_steps=16, operations=12_000
)
_STRENGTH: Final = 2.0


@dataclass(slots=True)
class _Strength:
    """Lets a cause be as strong as is drawn, whatever that brings: no truth is needed here."""

    goal: float
    first: float
    moved: bool = field(default=False, init=False)

    def __call__(self, job: JobModel, injections: Sequence[Injection], *, seed: int) -> float:
        """Return the goal, once the strength has been moved."""
        del job, injections, seed
        reached = self.goal if self.moved else self.first
        self.moved = True
        return reached


@dataclass(frozen=True, slots=True)
class Adapted:
    """One job: its cause, and what its replay is adapted to."""

    seed: int
    cause: str
    made: tuple[Name, ...]

    @property
    def uncalled(self) -> tuple[Name, ...]:
        """Return what fires without being called for."""
        called = CALLED_FOR.get(self.cause, frozenset())
        return tuple(name for name in self.made if name not in called)


def adapted_job(seed: int, only: str | None = None) -> Adapted:
    """Draw the job of this seed, of one cause or none, and prepare its replay."""
    rng = stream(seed, "adaptations")
    drawn = str(rng.choice([HEALTHY, *CAUSES]))
    cause = drawn if only is None else only
    causes = () if cause == HEALTHY else (cause,)
    goal = 1.5
    first = 1 + (goal - 1) / float(rng.uniform(1 / _STRENGTH, _STRENGTH))
    job = draw_job(rng, needs_of(causes), _SIZES)
    session = afflict(job, causes, Goal(goal, _Strength(goal, first)), seed)
    made = prepare_replay(session.trace).adaptations
    return Adapted(seed, cause, tuple(adaptation.name for adaptation in made))


def lines(jobs: Sequence[Adapted]) -> Iterator[str]:
    """Yield a table of Markdown, by cause, and how many fire without being called for."""
    by_cause: dict[str, list[Adapted]] = defaultdict(list)
    for job in jobs:
        by_cause[job.cause].append(job)
    yield "| cause | jobs | adaptations that fire, on how many |"
    yield "| --- | ---: | --- |"
    for cause in (HEALTHY, *CAUSES):
        fired = Counter(name.value for job in by_cause[cause] for name in job.made)
        shown = ", ".join(f"`{name}` {count}" for name, count in fired.most_common())
        yield f"| {cause} | {len(by_cause[cause])} | {shown or 'none'} |"
    yield ""
    uncalled = [job for job in jobs if job.uncalled]
    yield f"{len(jobs)} jobs: adaptations that are not called for on {len(uncalled)}"


def main() -> None:
    """Print the table; fails where something fires that is not called for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first job")
    parser.add_argument("--jobs", type=int, default=1000)
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.jobs)
    jobs = [adapted_job(seed) for seed in seeds]
    for line in lines(jobs):
        print(line)
    for job in jobs:
        if job.uncalled:
            sys.stderr.write(f"{job}\n")
    sys.exit(any(job.uncalled for job in jobs))


if __name__ == "__main__":
    main()
