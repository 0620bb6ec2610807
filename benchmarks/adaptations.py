"""Adaptations of the replay that fire on random jobs of the paper's model; `make adaptations`.

An adaptation may fire only on a job that calls for it. Two causes call for some: a host that
launches late regularly delays the operations that it posts after its computations, and so do
kernels that wait for other kernels.
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
# Adaptations that a cause calls for, because its launches are late regularly.
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
# Small jobs, so that a thousand take minutes; adaptations depend on single lanes, not on their
# number.
_SIZES: Final = Range(
    dp=(1, 2, 3, 4), pp=(1, 2, 3, 4, 6), most_microbatches=12, most_steps=16, operations=12_000
)
_STRENGTH: Final = 2.0


@dataclass(slots=True)
class _Strength:
    """Gives a cause the drawn strength, whatever slowdown results, because no truth is needed."""

    goal: float
    first: float
    moved: bool = field(default=False, init=False)

    def __call__(self, job: JobModel, injections: Sequence[Injection], *, seed: int) -> float:
        """Return the goal after the strength was set."""
        del job, injections, seed
        reached = self.goal if self.moved else self.first
        self.moved = True
        return reached


@dataclass(frozen=True, slots=True)
class Adapted:
    """A job: its cause, and the adaptations of its replay."""

    seed: int
    cause: str
    made: tuple[Name, ...]

    @property
    def uncalled(self) -> tuple[Name, ...]:
        """Return the adaptations that the cause does not call for."""
        called = CALLED_FOR.get(self.cause, frozenset())
        return tuple(name for name in self.made if name not in called)


def adapted_job(seed: int, only: str | None = None) -> Adapted:
    """Draw the job of a seed, with one cause or none, and prepare its replay."""
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
    """Yield a Markdown table of adaptations by cause, and the number that no cause calls for."""
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
    """Print the table; fail if an adaptation fires that no cause calls for."""
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
