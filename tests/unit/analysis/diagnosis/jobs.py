"""Synthetic jobs and their diagnosis, for the tests of this folder."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.analysis.diagnosis.diagnose import Diagnosis, diagnose
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.places import Where
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.job import (
    USUAL_OP_TYPES,
    CostModel,
    JobModel,
    Profiler,
    Schedule,
)
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import SEPARATE_ALL_REDUCE, Sizes

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


def session(*injections: Injection, job: JobModel = JOB, seed: int = 5) -> SyntheticSession:
    return synthesize(job, injections, seed=seed)


def observe(synthetic: SyntheticSession) -> Observation:
    return Observation(synthetic.trace, prepare_replay(synthetic.trace).main)


def diagnosed(synthetic: SyntheticSession) -> Diagnosis:
    replayed = prepare_replay(synthetic.trace)
    return diagnose(synthetic.trace, replayed, measure(replayed))


def causes(diagnosis: Diagnosis) -> list[str]:
    return [cause.cause for cause in diagnosis.causes]


def evidence(diagnosis: Diagnosis) -> str:
    return "; ".join(line.text for cause in diagnosis.causes for line in cause.evidence)


def where(diagnosis: Diagnosis) -> Where:
    return diagnosis.causes[0].where
