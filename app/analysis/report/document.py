"""The report of a session, ``paceline.report/1``: one class for each object of its JSON.

Fields are keys, in this order; parts of it are in the files beside this one and where they are
made. `docs/report.md` is made from the docstrings. Lists by worker are [dp][pp]; lists by step are
in the order of `Steps.analyzed`. S is the slowdown of the paper (section 3): simulated time with
the recorded durations ÷ with all of them ideal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Literal

from app.analysis.diagnosis.headline import Headline
from app.analysis.diagnosis.places import Worker
from app.analysis.diagnosis.verdict import Verdict
from app.analysis.json_text import OMITTED
from app.analysis.mitigation.templates import PlannedTemplate, WithheldTemplate
from app.analysis.mitigation.tensor.recorded import TensorAdvice
from app.analysis.replay.layout.dense import DroppedStep
from app.analysis.report.coverage import Clocks, Coverage, Fidelity
from app.analysis.report.findings import DiagnosisSummary, NamedCause, Recommendation
from app.analysis.report.measures import (
    ByWorker,
    Correlation,
    PerStep,
    Recovery,
    StepTimes,
    WorkersRecovery,
)
from app.analysis.report.shapes import CountByCell, Interval, Numbers

SCHEMA: Final = "paceline.report/1"
# Of the fields within the schema: a report that was stored with a lower one is upgraded on reading.
REVISION: Final = 2
SECONDS_AN_HOUR: Final = 3600


@dataclass(frozen=True, slots=True)
class JobSizes:
    """How the job is divided.

    Parameters
    ----------
    dp : int
        Data-parallel ranks.
    pp : int
        Pipeline stages.
    tp : int
        Tensor-parallel ranks.
    cp : int
        Context-parallel ranks.
    vpp : int
        Virtual stages on each pipeline stage.
    world : int
        GPUs of the job.
    """

    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    world: int


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers: one cell of DP rank and stage each, of which one rank is traced.

    Parameters
    ----------
    rank : tuple of tuple of int
        Global rank that was traced, [dp][pp].
    """

    rank: CountByCell


@dataclass(frozen=True, slots=True)
class Steps:
    """Which training steps the report is about.

    Parameters
    ----------
    analyzed : tuple of int
        Numbers of the analyzed steps, ascending.
    dropped : tuple of DroppedStep
        Steps that were recorded, but are not complete.
    """

    analyzed: tuple[int, ...]
    dropped: tuple[DroppedStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of a session.

    Parameters
    ----------
    schema : ``paceline.report/1``
        Which document this is.
    revision : int
        Which fields it has.
    job : str or None
        Name of the job; None where a file was analyzed.
    session : str or None
        Id of the session; None where a file was analyzed.
    trial_name : str or None
        As the metadata have it.
    sizes : JobSizes
        How the job is divided.
    hosts : mapping of int to str
        Host of each global rank, as far as the metadata say.
    gpus : mapping of int to str
        GPU of each global rank, as far as the metadata say.
    workers : Workers
        The workers.
    steps : Steps
        Analyzed and dropped steps.
    coverage : Coverage
        What arrived and what was repaired.
    clocks : Clocks
        How far clocks are apart.
    fidelity : Fidelity
        Whether the replay is near enough to the recording.
    headline : Headline
        The slowdown that people are shown: against the job without its causes.
    slowdown : float
        S.
    slowdown_ci95 : (float, float)
        Its 95 % interval.
    waste : float
        Share of the step time that is lost, 1 - 1/S.
    waste_ci95 : (float, float)
        Its 95 % interval.
    gpu_hours_lost : float
        In the analyzed steps, by all GPUs together.
    gpu_hours_lost_per_hour : float
        In each hour of running, by all GPUs together.
    launch_slowdown : float
        Mean recorded ÷ mean simulated step time: what late launches cost.
    launch_by_optype : mapping of str to float
        What late launches of one operation type add, as a share of the recorded step time. Each is
        replayed alone: delays that hide behind one another count in each.
    k50 : int or None
        Fewest workers, by exact slowdown, whose idealization brings half of the lost time back;
        None where under 1 % of a step is lost, or no number of workers does.
    step_times : StepTimes
        What each step takes.
    step_slowdown : tuple of float
        Simulated ÷ ideal time of each step.
    by_optype : mapping of str to float
        Slowdown if only this operation type kept its recorded durations.
    waste_by_optype : mapping of str to float
        The same as a share, 1 - 1/S of the type.
    by_dp : tuple of float
        Slowdown if only this DP rank kept its recorded durations.
    by_pp : tuple of float
        Slowdown if only this stage kept its recorded durations.
    per_step : PerStep
        The slowdowns of each step.
    by_worker : ByWorker
        The slowdowns of each worker.
    m_w : WorkersRecovery
        What the slowest 3 % of the workers account for, M_W.
    m_s : Recovery
        What the last stage accounts for, M_S; 0 where there is one stage.
    fb_correlation : Correlation
        Forward against backward times.
    causes : tuple of NamedCause
        Why the job is slow, the most expensive cause first.
    diagnosis : DiagnosisSummary
        What was ruled out, and what cannot be judged.
    recommendations : tuple of Recommendation
        Changes that help, the best one first.
    template : PlannedTemplate, WithheldTemplate or None
        A better division of the layers; None where no cause calls for one.
    verdict : Verdict
        How slow the job is and why, in a sentence.
    tensor : TensorAdvice or None
        Which work to take off the slow ranks of tensor-parallel groups, where such a rank is a
        cause.
    """

    schema: Literal["paceline.report/1"] = SCHEMA
    revision: int = REVISION
    job: str | None = None
    session: str | None = None
    trial_name: str | None
    sizes: JobSizes
    hosts: dict[int, str]
    gpus: dict[int, str]
    workers: Workers
    steps: Steps
    coverage: Coverage
    clocks: Clocks
    fidelity: Fidelity
    headline: Headline
    slowdown: float
    slowdown_ci95: Interval
    waste: float
    waste_ci95: Interval
    gpu_hours_lost: float
    gpu_hours_lost_per_hour: float
    launch_slowdown: float
    launch_by_optype: dict[str, float]
    k50: int | None
    step_times: StepTimes
    step_slowdown: Numbers
    by_optype: dict[str, float]
    waste_by_optype: dict[str, float]
    by_dp: Numbers
    by_pp: Numbers
    per_step: PerStep
    by_worker: ByWorker
    m_w: WorkersRecovery
    m_s: Recovery
    fb_correlation: Correlation
    causes: tuple[NamedCause, ...]
    diagnosis: DiagnosisSummary
    recommendations: tuple[Recommendation, ...]
    template: PlannedTemplate | WithheldTemplate | None
    verdict: Verdict
    tensor: TensorAdvice | None = field(default=None, metadata=OMITTED)

    @property
    def lost_gpu_hours(self) -> float:
        """Return what people are told is lost, counted against the headline's reference.

        GPU-hours of all GPUs together in the analyzed steps.
        """
        steps_s = sum(self.step_times.simulated)
        return self.sizes.world * steps_s * self.headline.waste / SECONDS_AN_HOUR

    @property
    def lost_gpu_hours_per_hour(self) -> float:
        """Return the same of each hour of running."""
        return self.sizes.world * self.headline.waste

    def host_of(self, worker: Worker) -> str | None:
        """Return the host of a worker, where it is known."""
        dp, pp = worker
        return self.hosts.get(self.workers.rank[dp][pp])

    def ranked_workers(self) -> list[tuple[float, int, int]]:
        """Return (slowdown, dp, pp) of every worker, slowest first, then by place."""
        # What is equal stays in order.
        return sorted(self._workers(), key=itemgetter(0), reverse=True)

    def worst_worker(self) -> tuple[float, int, int]:
        """Return the first of these."""
        return max(self._workers(), key=itemgetter(0))

    def _workers(self) -> Iterator[tuple[float, int, int]]:
        return (
            (value, dp, pp)
            for dp, row in enumerate(self.by_worker.exact)
            for pp, value in enumerate(row)
        )
