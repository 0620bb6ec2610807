"""A job of the second physics: encoded, decoded, analyzed, compared with its truth."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata
from app.analysis.trace.model import Trace
from tests.oracles.physics.draw import FAULTS, Job, draw_job
from tests.oracles.physics.record import ABSENT, Recording

NONE: Final = "none"
# Jobs that are slower than this count in F1 (what-if paper, section 4).
STRAGGLING: Final = 1.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The truth about a job and its report.

    Parameters
    ----------
    seed : int
    fault, cause : str
        `NONE` for a healthy job.
    shape : str
        Sizes and ways of execution in a line.
    slowdown, headline, published : float
        True slowdown; the report's headline and its S.
    named : tuple of str
        Causes, most expensive first.
    worker_right, stage_right : bool or None
        Whether the first blamed worker or stage is faulty; None if none is, or nothing was named.
    has_verdict : bool
    fixes : tuple of str
        Recommended actions.
    sentence : str
    """

    seed: int
    fault: str
    cause: str
    shape: str
    slowdown: float
    headline: float
    published: float
    named: tuple[str, ...]
    worker_right: bool | None
    stage_right: bool | None
    has_verdict: bool
    fixes: tuple[str, ...]
    sentence: str

    @property
    def lead(self) -> str:
        """Return the first named cause."""
        return self.named[0] if self.named else NONE


def trace_of(recording: Recording) -> Trace:
    """Return a recording as the product decodes it."""
    op = pa.DictionaryArray.from_arrays(recording.op, pa.array(recording.op_names))
    columns = {"op": op} | {
        name: pa.array(values, mask=values == ABSENT if name in ("mb", "mc") else None)
        for name, values in recording.columns.items()
    }
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        # Uncompressed, because it is read only once; the stubs do not know a list of columns.
        pq.write_table(
            pa.table(columns),
            file.name,
            compression="none",
            use_dictionary=["op"],  # type: ignore[arg-type]
        )
        meta = load_metadata(json.dumps(recording.metadata))
        return decode(Path(file.name), meta, limits=Limits()).trace


def judge(seed: int, fault: str | None) -> Verdict:
    """Draw the job of a seed, analyze it and compare."""
    return judge_job(seed, draw_job(seed, fault))


def judge_job(seed: int, job: Job) -> Verdict:
    """Analyze a job and compare it with its truth; `seed` is the job's seed."""
    report = analyze(trace_of(job.recording())).report
    first = next((cause for cause in report.causes if cause.cause != UNKNOWN), None)
    worker_right = stage_right = None
    if first is not None and job.workers and first.where.workers:
        worker_right = tuple(first.where.workers[0]) in job.workers
    if first is not None and job.stage is not None and first.where.stage is not None:
        stage_right = first.where.stage == job.stage
    shape = job.shape
    return Verdict(
        seed=seed,
        fault=NONE if job.fault is None else job.fault.name,
        cause=NONE if job.fault is None else job.fault.cause,
        shape=(
            f"dp {shape.dp} pp {shape.pp} vpp {shape.vpp} tp {shape.tp} "
            f"mb {shape.microbatches} steps {shape.steps} {shape.schedule} {shape.posting}"
            f"{' host waits' if shape.host_waits else ''}"
            f"{'' if shape.scatter_recorded else ' no scatter'}"
        ),
        slowdown=job.slowdown,
        headline=_said(job, report),
        published=report.slowdown,
        named=tuple(cause.cause for cause in report.causes),
        worker_right=worker_right,
        stage_right=stage_right,
        has_verdict=report.fidelity.verdict,
        fixes=tuple(fix.action for fix in report.recommendations),
        sentence=report.verdict.sentence,
    )


def _said(job: Job, report: Report) -> float:
    """Return the slowdown in a report.

    Pauses between steps are not in the headline, but their causes have a cost as a share of the
    time.
    """
    if job.fault is None or not job.fault.between:
        return report.headline.slowdown
    lost_s = sum(cause.cost_s or 0.0 for cause in report.causes)
    return 1 / (1 - lost_s / report.diagnosis.turn_s) if report.diagnosis.turn_s else 1.0


def draw_fault(seed: int, healthy: float) -> str | None:
    """Return a random job's fault: none in a share of jobs, else each kind equally often."""
    rng = np.random.default_rng([seed, 0xFA17])
    if rng.random() < healthy:
        return None
    return list(FAULTS)[int(rng.integers(len(FAULTS)))]


def judge_seed(seed: int, healthy: float, only: str | None) -> Verdict:
    """Judge the job of a seed, with a given kind of fault or a random one."""
    return judge(seed, only if only is not None else draw_fault(seed, healthy))
