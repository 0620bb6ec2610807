from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.diagnose import diagnose
from app.analysis.diagnosis.figures import Links, Stalls
from app.analysis.diagnosis.limits import cannot_judge
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.places import Where, WorkerView
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    MemoryFragmentation,
    SequenceLengths,
    SlowWorker,
    StageImbalance,
    TensorParallelStraggler,
)
from app.analysis.synthesis.injections.transfers import (
    FalseKernelDependency,
    SlowDataLoading,
    SlowLink,
)
from app.analysis.synthesis.job import CostModel, JobModel, Profiler
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, Sizes, Trace
from tests.schedules import Job, executed
from tests.unit.analysis.diagnosis.jobs import (
    INTERLEAVED,
    JOB,
    MS,
    ONE_RANK,
    ONE_STAGE,
    TENSOR,
    causes,
    diagnosed,
    evidence,
    session,
    where,
)

SPELLS = Spells(share=0.5)
TWO_WORKERS = replace(ONE_STAGE, sizes=Sizes(dp=2, pp=1))


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (SlowWorker((2, 1), 1.6), JOB),
        (SlowWorker((2, 1), 1.6, Spells(from_step=6)), JOB),
        (SlowWorker((2, 1), 1.8, SPELLS), JOB),
        (SlowWorker((2, 0), 1.6), ONE_STAGE),
        (SlowWorker((2, 0), 1.8, SPELLS), ONE_STAGE),
        (SlowWorker((1, 0), 3.0, Spells(from_step=6)), TWO_WORKERS),
        (SlowWorker((1, 0), 1.3), TWO_WORKERS),
        (SlowWorker((2, 1), 1.6), TENSOR),
        (StageImbalance(), JOB),
        (StageImbalance(1.8, 1.8, at=1), JOB),
        (StageImbalance(), ONE_RANK),
        (SequenceLengths(), JOB),
        (SequenceLengths(), ONE_STAGE),
        (SequenceLengths(), ONE_RANK),
        (GarbageCollection(100 * MS, pauses=0.5), JOB),
        (GarbageCollection(100 * MS, pauses=0.5), ONE_STAGE),
        (SlowLink((2, 1), 30.0), JOB),
        (SlowLink((2, 1), 40.0, SPELLS), JOB),
        (SlowDataLoading(200 * MS), JOB),
        (SlowDataLoading(200 * MS), ONE_STAGE),
        (SlowDataLoading(200 * MS), replace(JOB, edge_transfers=True)),
        (FalseKernelDependency(), INTERLEAVED),
        (TensorParallelStraggler((2, 1), 3, 1.6), TENSOR),
        (MemoryFragmentation((2, 1), 40 * MS), TENSOR),
    ],
    ids=lambda value: value.cause if isinstance(value, Injection) else str(value.sizes.workers),
)
def test_a_single_cause_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
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


@pytest.mark.parametrize("job", [JOB, ONE_STAGE, ONE_RANK, TENSOR, INTERLEAVED])
def test_a_healthy_job_has_no_cause(job: JobModel) -> None:
    diagnosis = diagnosed(session(job=job))

    assert diagnosis.causes == ()
    assert diagnosis.slowdown < 1.05


def test_causes_that_hold_at_once_share_the_lost_time_fairly() -> None:
    both = session(SlowDataLoading(200 * MS), StageImbalance())
    diagnosis = diagnosed(both)

    assert sorted(causes(diagnosis)) == ["data_loading", "stage_imbalance"]
    cost = {cause.cause: cause.cost_s or 0.0 for cause in diagnosis.causes}
    shares = [cause.contribution or 0.0 for cause in diagnosis.causes]
    assert sum(cost.values()) == pytest.approx(sum(shares) * diagnosis.lost_s)
    assert sum(shares) <= 1 + 1e-9
    # The wait comes before the rest of a step and costs the same whatever the stages do.
    assert cost["data_loading"] == pytest.approx(0.2, rel=0.2)
    names = causes(diagnosis)
    assert diagnosis.causes[0].runner_up == names[1]


def test_evidence_of_a_slow_worker_says_how_slow_where_and_since_when() -> None:
    synthetic = session(SlowWorker((2, 1), 1.6, Spells(from_step=6), backward_share=0.5))
    diagnosis = diagnosed(synthetic)

    step = sorted(set(synthetic.trace.step.tolist()))[6]
    host = synthetic.trace.meta.hosts[synthetic.job.traced_rank(2, 1)]
    text = evidence(diagnosis)
    assert text.startswith(f"Worker (2, 1) on {host}: forward 1.6")
    assert "backward 1.3" in text
    assert f"in every step since {step}" in text
    assert diagnosis.causes[0].evidence[0].view == WorkerView(dp=2, pp=1)


def test_several_slow_workers_are_named_slowest_first() -> None:
    diagnosis = diagnosed(session(SlowWorker((0, 2), 1.5), SlowWorker((3, 1), 2.0)))

    assert causes(diagnosis) == ["slow_worker"]
    assert where(diagnosis) == Where(workers=((3, 1), (0, 2)))


def test_a_worker_that_is_seldom_slow_is_named_beside_one_that_mostly_is() -> None:
    job = replace(JOB, steps=24)
    seldom = SlowWorker((0, 2), 2.0, Spells(share=0.2))
    diagnosis = diagnosed(session(SlowWorker((3, 1), 2.4), seldom, job=job))

    assert where(diagnosis).workers == ((3, 1), (0, 2))


def test_a_tensor_parallel_straggler_is_named_by_its_global_rank() -> None:
    synthetic = session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR)
    diagnosis = diagnosed(synthetic)

    rank = TENSOR.traced_rank(2, 1, 3)
    assert where(diagnosis).ranks == (rank,)
    assert f"global rank {rank}" in evidence(diagnosis)


def test_without_tensor_records_the_same_fault_is_a_slow_worker_and_the_limit_is_stated() -> None:
    job = replace(TENSOR, profiler=Profiler())
    diagnosis = diagnosed(session(TensorParallelStraggler((2, 1), 3, 1.6), job=job))

    assert causes(diagnosis) == ["slow_worker"]
    reason = "no tensor-parallel operations recorded"
    assert diagnosis.unjudged["tensor_parallel_straggler"] == reason
    assert diagnosis.unjudged["memory_fragmentation"] == reason
    assert "tensor_parallel_straggler" not in diagnosis.ruled_out


def test_clocks_of_other_hosts_do_not_make_a_tensor_rank_late() -> None:
    skewed = Profiler(tensor_ranks=True, clock_skew_ns=5 * MS)
    job = replace(TENSOR, profiler=skewed, gpus_per_host=2)

    assert "tensor_parallel_straggler" not in causes(diagnosed(session(job=job)))


def test_what_a_session_cannot_show_is_said() -> None:
    one_rank = diagnosed(session(job=ONE_RANK)).unjudged
    assert "no peers" in one_rank["slow_worker"]
    assert one_rank.keys() == {"slow_worker"}
    assert diagnosed(session(job=ONE_STAGE)).unjudged == {}
    bare = replace(JOB, sizes=Sizes(dp=2, pp=2, cp=2), op_types=frozenset())
    said = diagnosed(session(job=bare)).unjudged
    assert "before a step's first forward" in said["data_loading"]
    assert said["false_kernel_dependency"] == "no reduce-scatters recorded"
    assert said["context_parallel_straggler"] == "no context-parallel operations recorded"


def test_recorded_sequence_lengths_are_held_against_the_times() -> None:
    job = replace(JOB, profiler=Profiler(sequence_lengths=True))

    assert "follow Σs²" in evidence(diagnosed(session(SequenceLengths(), job=job)))
    assert "follow Σs²" not in evidence(diagnosed(session(SequenceLengths())))


@pytest.mark.parametrize(
    "lane",
    [
        7,
        "a text as long",
        {"0": [512]},
        [512] * 8,
        [None] * 8,
        [["512"]] * 8,
        [[True]] * 8,
        [[-512]] * 8,
        [[float("nan")]] * 8,
        [[10**200]] * 8,
    ],
    ids=str,
)
def test_what_is_no_list_of_sequence_lengths_is_left_alone(lane: object) -> None:
    trace = session(SequenceLengths()).trace
    recorded = {str(step): [lane] * JOB.sizes.dp for step in np.unique(trace.step).tolist()}
    document = analyze(
        replace(trace, meta=replace(trace.meta, extra={"sequence_lengths": recorded}))
    ).document

    assert document["causes"][0]["cause"] == "sequence_length_imbalance"
    assert "Σs²" not in " ".join(document["causes"][0]["evidence"])


def test_pauses_that_grow_are_said_to_grow() -> None:
    diagnosis = diagnosed(session(GarbageCollection(80 * MS, pauses=1.0, growth=2.0)))

    assert "They grow: " in evidence(diagnosis)
    figure = diagnosis.causes[0].figure
    assert isinstance(figure, Stalls)
    assert len(figure.by_step_s) == JOB.steps


def test_stalls_of_one_worker_alone_are_not_garbage_collection() -> None:
    synthetic = session(MemoryFragmentation((1, 1), 60 * MS, share=0.3, spells=Spells()))

    assert "garbage_collection" not in causes(diagnosed(synthetic))


def test_slow_links_name_the_worker_that_they_share() -> None:
    diagnosis = diagnosed(session(SlowLink((2, 1), 30.0)))

    assert where(diagnosis).links == ((2, 0, 1), (2, 1, 2))
    assert "2 of 12 links are slow" in evidence(diagnosis)
    assert "1 of 12 links is slow" in evidence(diagnosed(session(SlowLink((2, 0), 30.0))))
    assert "Collectives over the DP ranks of stage 1" in evidence(diagnosis)
    figure = diagnosis.causes[0].figure
    assert isinstance(figure, Links)
    assert figure.ends == ((0, 1), (1, 2), (2, 3))


def test_a_network_that_flaps_shows_even_with_one_stage() -> None:
    job = replace(ONE_STAGE, costs=CostModel(grads_ns=200 * MS))
    diagnosis = diagnosed(session(SlowLink((2, 0), 6.0, Spells(from_step=8)), job=job))

    assert causes(diagnosis) == ["network"]
    assert where(diagnosis) == Where(links=(), stage=0)


def test_data_that_is_late_for_all_has_no_place() -> None:
    assert where(diagnosed(session(SlowDataLoading(200 * MS)))) == Where()


def test_what_no_cause_explains_is_unknown() -> None:
    noisy = replace(JOB, costs=CostModel(compute_noise=0.35))
    diagnosis = diagnosed(session(job=noisy))

    assert diagnosis.slowdown > 1.2
    assert causes(diagnosis)[0] == "unknown"
    assert "beyond" in evidence(diagnosis)


UNEVEN = Job("interleaved", dp=3, pp=4, vpp=2, microbatches=8, missing_chunks=frozenset({(3, 1)}))


def uneven_chunks() -> Trace:
    return executed(UNEVEN, steps=6)[0]


def test_stages_with_other_chunks_leave_open_what_their_comparison_would_tell() -> None:
    document = analyze(uneven_chunks()).document

    assert document["slowdown"] > 1.1
    assert [cause["cause"] for cause in document["causes"]] == ["unknown"]
    assert document["verdict"]["level"] == "slow"
    unjudged = {item["cause"]: item["reason"] for item in document["diagnosis"]["cannot_judge"]}
    assert unjudged.keys() >= {
        "stage_imbalance",
        "sequence_length_imbalance",
        "garbage_collection",
    }
    assert "cannot be compared" in unjudged["garbage_collection"]
    assert unjudged.keys().isdisjoint(document["diagnosis"]["ruled_out"])


@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_a_slow_worker_shows_where_stages_have_other_chunks(factor: float) -> None:
    steady = replace(UNEVEN, compute_ns=400_000_000)
    healthy = analyze(executed(steady, steps=6)[0]).document
    assert "slow_worker" in healthy["diagnosis"]["ruled_out"]
    for worker in ((1, 2), (2, 3)):
        trace = executed(replace(steady, slow=(worker, factor)), steps=6)[0]
        document = analyze(trace).document
        (cause,) = document["causes"]
        assert (cause["cause"], cause["where"]) == ("slow_worker", {"workers": [list(worker)]})
        assert f"forward {factor:.1f}" in cause["evidence"][0]
        assert document["recommendations"][0]["action"] == "replace_worker"


def test_workers_are_not_compared_where_a_stage_computes_more_often_forward() -> None:
    synthetic = session()
    group = prepare_replay(synthetic.trace).main
    layout, nodes = group.layout, group.layout.nodes
    op = nodes.op.copy()
    op[np.flatnonzero((op == layout.codes(BACKWARD_COMPUTE)[0]) & (nodes.pp == 1))[0]] = (
        layout.codes(FORWARD_COMPUTE)[0]
    )
    other = replace(group, layout=replace(layout, nodes=replace(nodes, op=op)))
    observation = Observation(synthetic.trace, other)

    said = cannot_judge(observation, tensor_ranks=False)
    assert "as often forward as backward" in said["slow_worker"]
    assert "cannot be compared" in said["stage_imbalance"]


def test_a_slow_network_shows_where_stages_have_other_chunks() -> None:
    trace = uneven_chunks()
    slow = (trace.pp == 0) & (trace.op == trace.op_names.index("grads-reduce-scatter"))
    longer = replace(trace, duration_ns=trace.duration_ns + slow * 5_000_000_000)
    replayed = prepare_replay(longer)
    diagnosis = diagnose(longer, replayed, measure(replayed))

    assert causes(diagnosis) == ["network"]
    assert where(diagnosis).stage == 0
