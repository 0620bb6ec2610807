"""Synthetic jobs and their diagnosis, for the tests of this folder."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from app.analysis.diagnosis.causes.kind import CauseKind
from app.analysis.diagnosis.diagnose import Diagnosis, diagnose
from app.analysis.diagnosis.finding import Finding
from app.analysis.diagnosis.locations import Where
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.session_view import Signs
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.host_sessions import HostSession
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.job import (
    USUAL_OP_TYPES,
    CostModel,
    JobModel,
    Profiler,
    Schedule,
)
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import SEPARATE_ALL_REDUCE, Sizes, Trace
from tests.schedules import Job, executed

MS: Final = 1e6
JOB: Final = JobModel(sizes=Sizes(dp=4, pp=4), microbatches=8, steps=12)
ONE_STAGE: Final = replace(JOB, sizes=Sizes(dp=6, pp=1))
ONE_RANK: Final = replace(JOB, sizes=Sizes(dp=1, pp=4))
TENSOR: Final = replace(
    JOB, sizes=Sizes(dp=3, pp=2, tp=4), profiler=Profiler(tensor_ranks=True), steps=14
)
INTERLEAVED: Final = replace(
    JOB,
    sizes=Sizes(dp=3, pp=2, vpp=2),
    schedule=Schedule.INTERLEAVED,
    op_types=USUAL_OP_TYPES | {SEPARATE_ALL_REDUCE},
    costs=CostModel(grads_ns=200 * MS),
)

# The last stage has one model chunk fewer than the others.
UNEVEN: Final = Job(
    "interleaved", dp=3, pp=4, vpp=2, microbatches=8, missing_chunks=frozenset({(3, 1)})
)


def uneven_chunks() -> Trace:
    return executed(UNEVEN, steps=6)[0]


def session(*injections: Injection, job: JobModel = JOB, seed: int = 5) -> SyntheticSession:
    return synthesize(job, injections, seed=seed)


def observe(synthetic: SyntheticSession | HostSession) -> Observation:
    return Observation(synthetic.trace, prepare_replay(synthetic.trace).main)


def signs_of(synthetic: SyntheticSession | HostSession, step_ns: float = 1e9) -> Signs:
    return Signs(observe(synthetic), step_ns)


def found(kind: CauseKind, signs: Signs) -> Finding:
    finding = kind.find(signs)
    assert finding is not None
    return finding


def diagnosed(synthetic: SyntheticSession) -> Diagnosis:
    replayed = prepare_replay(synthetic.trace)
    return diagnose(Observation(synthetic.trace, replayed.main), replayed, measure(replayed))


def causes(diagnosis: Diagnosis) -> list[str]:
    return [cause.cause for cause in diagnosis.causes]


def evidence(diagnosis: Diagnosis) -> str:
    return "; ".join(line.text for cause in diagnosis.causes for line in cause.evidence)


def where(diagnosis: Diagnosis) -> Where:
    return diagnosis.causes[0].where


def check_named_alone(injection: Injection, job: JobModel) -> None:
    """Check that a single fault is named alone, with its place and most of the lost time."""
    synthetic = session(injection, job=job)
    diagnosis = diagnosed(synthetic)

    assert causes(diagnosis) == [injection.cause]
    assert diagnosis.causes[0].contribution == pytest.approx(0.95, abs=0.2)
    assert diagnosis.causes[0].confidence is not None
    assert diagnosis.causes[0].confidence > 0.8
    truth = synthetic.truth
    assert where(diagnosis).stage == truth.stage
    assert where(diagnosis).workers == tuple(truth.workers)
    assert injection.cause not in diagnosis.ruled_out
    assert diagnosis.discrepancy < 0.02
