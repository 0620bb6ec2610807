"""Damaged traces for the engine: each one is analyzed or refused with a code."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from app.analysis.json_text import to_json
from app.analysis.report.build import analyze
from app.analysis.synthesis.host_sessions import HOST_SCENARIOS, run
from app.analysis.trace.decode import decode
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.limits import MAX_MICROBATCH, MAX_ORDER, MAX_STEP, MAX_TIME_NS, Limits
from app.analysis.trace.metadata import load_metadata
from app.analysis.trace.model import REPLAYED_OP_TYPES, Trace
from app.errors import PacelineError
from tests.factories import COLUMNS, joined, select, session
from tests.schedules import Job, executed

LIMITS: Final = Limits(max_rows=100_000)
STEPS: Final = 6

JOBS: Final = (
    Job("1f1b", dp=2, pp=2, microbatches=3),
    Job("1f1b", dp=1, pp=1, microbatches=2),
    Job("gpipe", dp=3, pp=2, microbatches=2, overlapped=True, buckets=2),
    Job("interleaved", dp=2, pp=2, vpp=2, microbatches=4),
    Job("zero-bubble", dp=1, pp=3, microbatches=4),
    Job("1f1b", dp=2, pp=2, cp=2, microbatches=3, types=frozenset(), edge_transfers=True),
)


@cache
def modeled() -> tuple[Trace, ...]:
    """Return traces of every schedule in the paper's model with noise, to be damaged."""
    traces = [executed(job, steps=STEPS, seed=seed)[0] for seed, job in enumerate(JOBS)]
    return (*traces, session(dp=2, pp=2, steps=STEPS, microbatches=3).trace)


@cache
def bases() -> tuple[Trace, ...]:
    """Return traces to damage: modeled ones, ones that hosts slow, and any published ones."""
    hosts = [
        run(replace(scenario.job, dp=2, pp=2, microbatches=3, steps=STEPS)).trace
        for scenario in HOST_SCENARIOS.values()
    ]
    traces = [*modeled(), *hosts]
    folder = os.environ.get("PACELINE_REFERENCE_DATA")
    if folder:
        for name in ("ST", "AR"):
            meta = load_metadata((Path(folder) / f"meta-{name}.yaml").read_text())
            whole = decode(Path(folder) / f"trace-{name}.parquet", meta, limits=Limits()).trace
            traces.append(select(whole, np.isin(whole.step, np.unique(whole.step)[:STEPS])))
    return tuple(traces)


Damage = Callable[[Trace, Generator], Trace]


def _with(trace: Trace, **columns: NDArray[np.signedinteger[Any]]) -> Trace:
    typed = {name: values.astype(getattr(trace, name).dtype) for name, values in columns.items()}
    return dataclasses.replace(trace, **typed)  # type: ignore[arg-type]  # columns of Trace


def _chosen(trace: Trace, rng: Generator) -> NDArray[np.bool_]:
    """Choose rows with a common property, or none."""
    rows = np.ones(len(trace), dtype=bool)
    for name in rng.choice(["rank", "step", "op", "pp", "mb", "order", "none"], rng.integers(1, 4)):
        if name == "none":
            rows &= rng.random(len(trace)) < rng.choice([0.001, 0.01, 0.1, 0.5, 0.9])
        else:
            values = getattr(trace, name)
            rows &= values == rng.choice(values)
    return rows


def lose(trace: Trace, rng: Generator) -> Trace:
    kept = ~_chosen(trace, rng)
    return select(trace, kept) if kept.any() else trace


def lose_types(trace: Trace, rng: Generator) -> Trace:
    lost = rng.random(len(trace.op_names)) < rng.random()
    kept = ~lost[trace.op]
    return select(trace, kept) if kept.any() else trace


def shuffle(trace: Trace, rng: Generator) -> Trace:
    return select(trace, rng.permutation(len(trace)))


def renumber(trace: Trace, rng: Generator) -> Trace:
    factor, shift = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    rows = _chosen(trace, rng)
    changed = np.minimum(trace.order.astype(np.int64) * factor + shift, MAX_ORDER)
    return _with(trace, order=np.where(rows, changed, trace.order))


def reorder(trace: Trace, rng: Generator) -> Trace:
    return _with(trace, order=rng.permutation(len(trace)))


def rename(trace: Trace, rng: Generator) -> Trace:
    rows = _chosen(trace, rng)
    name = str(rng.choice(["mb", "mc"]))
    most = {"mb": int(rng.choice([0, 1, 7, MAX_MICROBATCH])), "mc": trace.meta.sizes.vpp - 1}[name]
    values = rng.integers(-1, most + 1, len(trace)) if rng.random() < 1 / 2 else -1
    return _with(trace, **{name: np.where(rows, values, getattr(trace, name))})


def retype(trace: Trace, rng: Generator) -> Trace:
    rows = _chosen(trace, rng)
    return _with(trace, op=np.where(rows, rng.integers(len(REPLAYED_OP_TYPES)), trace.op))


def restep(trace: Trace, rng: Generator) -> Trace:
    rows = _chosen(trace, rng)
    step = int(rng.choice([0, 1, int(trace.step.max()), int(trace.step.max()) + 1, MAX_STEP]))
    return _with(trace, step=np.where(rows, step, trace.step))


def move_starts(trace: Trace, rng: Generator) -> Trace:
    rows = _chosen(trace, rng)
    shift = int(rng.choice([1, 10**6, 10**8, 10**12, MAX_TIME_NS])) * int(rng.choice([-1, 1]))
    moved = np.clip(trace.start_ns.astype(object) + shift, -MAX_TIME_NS, MAX_TIME_NS)
    return _with(trace, start_ns=np.where(rows, moved.astype(np.int64), trace.start_ns))


def mix_starts(trace: Trace, rng: Generator) -> Trace:
    rows = np.flatnonzero(_chosen(trace, rng))
    start = trace.start_ns.copy()
    start[rows] = start[rng.permutation(rows)]
    return _with(trace, start_ns=start)


def skew(trace: Trace, rng: Generator) -> Trace:
    offsets = rng.normal(0, 10 ** rng.uniform(3, 11), trace.meta.sizes.world)
    return _with(trace, start_ns=trace.start_ns + offsets.astype(np.int64)[trace.rank])


def stretch(trace: Trace, rng: Generator) -> Trace:
    rows = _chosen(trace, rng)
    value = int(rng.choice([0, 1, 10**9, 10**15, MAX_TIME_NS]))
    return _with(trace, duration_ns=np.where(rows, value, trace.duration_ns))


def freeze(trace: Trace, rng: Generator) -> Trace:
    names = ["start_ns", "duration_ns"][: int(rng.integers(1, 3))]
    return _with(trace, **{name: np.zeros(len(trace), dtype=np.int64) for name in names})


def repeat(trace: Trace, rng: Generator) -> Trace:
    """Repeat some operations, later in their step or in another step."""
    more = select(trace, _chosen(trace, rng))
    if not len(more):
        return trace
    count = int(trace.order.max()) + 1
    more = _with(more, order=more.order + count, mb=np.full(len(more), -1))
    if rng.random() < 1 / 2:
        more = _with(more, step=more.step + int(trace.step.max()) + 1)
    return joined(trace, more)


def make_absolute(trace: Trace, rng: Generator) -> Trace:
    start = trace.start_ns + 10**15 + trace.step % 1000 * int(rng.integers(0, 10**12))
    return dataclasses.replace(_with(trace, start_ns=start), step_relative=False)


DAMAGES: Final[tuple[Damage, ...]] = (
    *(lose, lose, lose_types, shuffle, renumber, reorder, rename, retype, restep),
    *(move_starts, mix_starts, skew, stretch, freeze, repeat, make_absolute),
)


def damaged(seed: int, every: Sequence[Trace] | None = None) -> Trace:
    """Return one damaged trace, determined by the seed and the traces."""
    rng = np.random.default_rng(seed)
    every = bases() if every is None else every
    trace = every[int(rng.integers(len(every)))]
    for _ in range(int(rng.integers(1, 5))):
        trace = DAMAGES[int(rng.integers(len(DAMAGES)))](trace, rng)
    return trace


def outcome(trace: Trace) -> str:
    """Analyze a trace unless it is refused; return the code of its refusal or "analyzed".

    Raises
    ------
    Exception
        Any other exception is a fault in the engine.
    """
    with warnings.catch_warnings():
        # NumPy warns when it computes a NaN.
        warnings.simplefilter("error")
        try:
            admitted = decode(to_parquet(trace), trace.meta, limits=LIMITS).trace
            report = analyze(admitted).report
        except PacelineError as error:
            if not error.stable_code.startswith("trace.") or not error.faults:
                raise
            json.dumps([fault.as_dict() for fault in error.faults])
            return error.stable_code
    to_json(report)
    assert set(COLUMNS) <= {field.name for field in dataclasses.fields(admitted)}
    return "analyzed"
