from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from app.analysis.synthesis.job import USUAL_OP_TYPES, JobModel
from app.analysis.synthesis.recording import EPOCH_NS
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GC,
    OPTIMIZER,
    PARAMS_ALL_GATHER,
    Sizes,
)
from tests.unit.analysis.synthesis.jobs import rows

JOB = JobModel(sizes=Sizes(dp=3, pp=2, tp=2, cp=2), microbatches=4, steps=30, name="tiny")
TRACE = synthesize(JOB, seed=11).trace


def test_rows_are_ordered_and_numbered_by_rank_step_type_and_order() -> None:
    keys = np.stack([TRACE.rank, TRACE.step, TRACE.op, TRACE.order])
    assert (np.lexsort(keys[::-1]) == np.arange(len(TRACE))).all()
    assert len(np.unique(keys, axis=1).T) == len(TRACE)
    same = (np.diff(keys[:3]) == 0).all(axis=0)
    assert (TRACE.order[1:][same] == TRACE.order[:-1][same] + 1).all()
    assert (TRACE.order[1:][~same] == 0).all()
    assert (np.diff(TRACE.start_ns)[same] >= 0).all()


def test_ranks_are_those_of_their_cells() -> None:
    cells = set(zip(TRACE.rank.tolist(), TRACE.dp.tolist(), TRACE.pp.tolist(), strict=True))
    assert cells == {(JOB.traced_rank(dp, pp), dp, pp) for dp in range(3) for pp in range(2)}


def test_sampled_steps_have_gaps_and_never_overlap_in_time() -> None:
    steps = sorted(set(TRACE.step.tolist()))
    assert len(steps) == 30
    gaps = np.diff(steps)
    assert gaps.min() == 1
    assert gaps.max() > 100
    end = TRACE.start_ns + TRACE.duration_ns
    begins = [TRACE.start_ns[TRACE.step == step].min() for step in steps]
    finishes = [end[TRACE.step == step].max() for step in steps]
    assert all(finish <= begin for finish, begin in zip(finishes, begins[1:], strict=False))
    assert begins[0] >= EPOCH_NS
    assert not TRACE.step_relative


def test_only_what_the_published_traces_carry_is_recorded() -> None:
    transfers = rows(TRACE, FORWARD_SEND, FORWARD_RECV)
    assert set(TRACE.mb[transfers].tolist()) == set(TRACE.mc[transfers].tolist()) == {ABSENT}
    computed = rows(TRACE, FORWARD_COMPUTE)
    assert set(TRACE.mb[computed].tolist()) == {0, 1, 2, 3}
    gathered = rows(TRACE, PARAMS_ALL_GATHER)
    assert set(TRACE.mc[gathered].tolist()) == {0}
    assert (TRACE.duration_ns[rows(TRACE, GC)] == 0).all()


def test_every_rank_has_a_host_and_a_gpu() -> None:
    meta = TRACE.meta
    assert meta.trial_name == "tiny"
    assert meta.sizes == JOB.sizes
    assert sorted(meta.hosts) == sorted(meta.gpus) == list(range(24))
    assert all(re.fullmatch(r"node-\d{3}", host) for host in meta.hosts.values())
    assert len(set(meta.hosts.values())) == 3
    assert meta.hosts[7] == meta.hosts[0] != meta.hosts[8]
    assert meta.gpus[9] == "GPU 1"


def test_an_unrecorded_type_still_takes_its_time_and_an_absent_one_does_not() -> None:
    job = JobModel(sizes=Sizes(dp=1, pp=1), microbatches=2, steps=2)
    whole = synthesize(job, seed=1)
    hidden = synthesize(replace(job, unrecorded=frozenset({OPTIMIZER})), seed=1)
    absent = synthesize(replace(job, op_types=USUAL_OP_TYPES - {OPTIMIZER}), seed=1)

    assert rows(whole.trace, OPTIMIZER).sum() == 2
    assert not rows(hidden.trace, OPTIMIZER).any()
    assert not rows(absent.trace, OPTIMIZER).any()
    assert hidden.truth.step_times_s == whole.truth.step_times_s
    assert max(absent.truth.step_times_s) < min(whole.truth.step_times_s)


def test_a_cluster_larger_than_usual_still_has_a_name_for_each_host() -> None:
    job = JobModel(sizes=Sizes(dp=512, pp=1, tp=8), microbatches=1, steps=1)

    assert len(set(synthesize(job, seed=1).trace.meta.hosts.values())) == 512


def test_edge_transfers_are_recorded_at_the_ends_and_move_nothing() -> None:
    job = JobModel(sizes=Sizes(dp=1, pp=3), microbatches=4, steps=2)
    plain = synthesize(job, seed=1).trace
    with_edges = synthesize(replace(job, edge_transfers=True), seed=1).trace

    assert rows(plain, FORWARD_RECV, pp=0).sum() == rows(plain, FORWARD_SEND, pp=2).sum() == 0
    for op in (FORWARD_RECV, FORWARD_SEND, BACKWARD_RECV, BACKWARD_SEND):
        for pp in range(3):
            assert rows(with_edges, op, pp=pp).sum() == 4 * 2
    assert with_edges.duration_ns[rows(with_edges, FORWARD_SEND, pp=2)].max() < 200_000
