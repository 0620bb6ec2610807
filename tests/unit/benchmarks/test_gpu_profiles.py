"""The simulated GPUs of `tests.support.gpu_profiles` obey the rules of streams and of NCCL."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.gpu_profiles.files import write
from tests.support.gpu_profiles.job import MS, US, Fault, Job, Mode, Style, Writer
from tests.support.gpu_profiles.machine import COMPUTE, Kernel, Machine, step_time_ns
from tests.support.gpu_profiles.programs import run
from tests.support.gpu_profiles.score import case

JOBS = [
    Job(
        mode=mode,
        ranks=4,
        buckets=buckets,
        streams=streams,
        steps=3,
        exchange=exchange,
        synchronized=buckets != 4,
        clipping=buckets == 4,
        copies_back=buckets == 9,
        compiled=buckets == 9,
        fault=Fault(slow_rank=2, slow_factor=1.5),
    )
    for mode, (buckets, exchange), streams in product(Mode, [(1, 0.3), (4, 1.2), (9, 0.8)], [1, 2])
]


@pytest.fixture(params=JOBS, ids=lambda job: f"{job.mode.value}-{job.buckets}-{job.streams}")
def machine(request: pytest.FixtureRequest) -> Machine:
    return run(request.param)


def collectives(machine: Machine) -> list[Kernel]:
    return [kernel for kernel in machine.kernels if kernel.collective is not None]


def test_ends_of_a_collective_are_one_moment(machine: Machine) -> None:
    for kernel in collectives(machine):
        assert np.ptp(kernel.end) <= 3 * US


def test_a_collective_takes_its_transfer_after_the_last_rank(machine: Machine) -> None:
    for kernel in collectives(machine):
        assert kernel.collective is not None
        np.testing.assert_array_equal(kernel.begin, kernel.collective.ready)
        shortest = (kernel.end - kernel.begin).min()
        assert 0 <= shortest - kernel.collective.transfer_ns <= 3 * US


def test_kernels_of_a_stream_run_in_the_order_of_their_launches(machine: Machine) -> None:
    for stream in {kernel.stream for kernel in machine.kernels}:
        ordered = [kernel for kernel in machine.kernels if kernel.stream == stream]
        for earlier, later in pairwise(ordered):
            assert np.all(later.begin >= earlier.end)


def test_kernels_begin_after_their_launches_and_hosts_run_ahead(machine: Machine) -> None:
    launches = {span.correlation: span for span in machine.spans if span.correlation is not None}
    ahead = [kernel.begin - launches[kernel.correlation].end for kernel in machine.kernels]
    assert np.min(ahead) > 0
    assert np.median(ahead) > 5 * MS


def test_collectives_of_a_group_have_one_order(machine: Machine) -> None:
    for group in {kernel.collective.group for kernel in collectives(machine) if kernel.collective}:
        mine = [k for k in collectives(machine) if k.collective and k.collective.group == group]
        assert [k.collective.sequence for k in mine if k.collective] == list(
            range(1, len(mine) + 1)
        )
        for earlier, later in pairwise(mine):
            assert np.all(later.begin >= earlier.end)


def test_the_optimizer_waits_for_all_gradients(machine: Machine) -> None:
    for step in range(machine.step):
        mine = [kernel for kernel in machine.kernels if kernel.step == step]
        reduced = [k for k in mine if k.collective and k.collective.name != "_allgather_base"]
        first = next(k for k in mine if "Adam" in k.name)
        assert np.all(first.begin >= np.max([k.end for k in reduced], axis=0))


def test_a_gradient_is_reduced_after_it_was_computed() -> None:
    machine = run(Job(Mode.DDP, ranks=4, buckets=4))
    for position, kernel in enumerate(machine.kernels):
        if kernel.collective is not None:
            before = [k for k in machine.kernels[:position] if k.stream == COMPUTE]
            assert np.all(kernel.begin >= before[-1].end)


def test_units_compute_after_their_parameters_are_gathered() -> None:
    machine = run(Job(Mode.FSDP2, ranks=4, buckets=4, exchange=1.2))
    for position, kernel in enumerate(machine.kernels):
        if kernel.collective is None or kernel.collective.name != "_allgather_base":
            continue
        later = machine.kernels[position + 1 :]
        uses = [k for k in later if k.stream == COMPUTE and "copy_out" in k.name]
        assert np.all(uses[0].begin >= kernel.begin)
        assert any(np.all(use.begin >= kernel.end) for use in uses[:2])


def test_peers_of_a_slow_rank_reduce_buckets_back_to_back() -> None:
    fault = Fault(slow_rank=2, slow_factor=1.8)
    machine = run(Job(Mode.DDP, ranks=4, buckets=8, exchange=0.7, fault=fault))
    touching = [
        later.begin == earlier.end
        for earlier, later in pairwise(collectives(machine))
        if earlier.step == later.step
    ]
    share = np.mean(touching, axis=0)
    assert share[2] == share.min()
    assert np.delete(share, 2).min() > 0.9


def test_a_step_of_one_bucket_is_computing_then_exchange() -> None:
    job = Job(Mode.DDP, ranks=4, buckets=1, exchange=0.5, noise=0)
    expected = (1 + 2 + 0.02 + 0.08 + 0.5 * 2) * job.forward_ns
    healthy = step_time_ns(run(job))
    assert healthy == pytest.approx(expected, rel=0.05)
    slow = step_time_ns(run(replace(job, fault=Fault(slow_rank=1, slow_factor=1.5))))
    assert slow - healthy == pytest.approx(0.5 * 3.1 * job.forward_ns, rel=0.03)


def test_a_late_batch_delays_all_ranks_of_a_synchronized_job() -> None:
    job = Job(Mode.FSDP2, ranks=4)
    late = replace(job, fault=Fault(loading_rank=1, loading_ns=30 * MS))
    assert step_time_ns(run(late)) - step_time_ns(run(job)) == pytest.approx(30 * MS, rel=0.05)


def test_a_host_that_runs_ahead_hides_short_loading() -> None:
    job = Job(Mode.DDP, ranks=4, synchronized=False)
    late = replace(job, fault=Fault(loading_rank=1, loading_ns=30 * MS))
    assert step_time_ns(run(late)) == pytest.approx(step_time_ns(run(job)), rel=0.01)


def test_the_same_job_without_its_fault_draws_the_same_random_numbers() -> None:
    job = Job(Mode.DDP, ranks=4, fault=Fault(slow_rank=0, slow_factor=1.0))
    assert step_time_ns(run(job)) == step_time_ns(run(job.healthy()))


def read(path: Path) -> dict[str, Any]:
    text = path.read_bytes()
    document = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("writer", Writer)
def test_files_differ_by_their_clocks(writer: Writer, tmp_path: Path) -> None:
    machine = run(Job(Mode.DDP, ranks=4, buckets=5, fault=Fault(slow_rank=1, slow_factor=1.5)))
    write(machine, Style(writer, clock_ns=200 * MS, drift_ppm=20, memory=True), tmp_path)
    ends = []
    for rank in range(4):
        document = read(tmp_path / f"rank{rank}.json")
        base = document.get("baseTimeNanoseconds", 0)
        ends.append(
            [
                base + (event["ts"] + event["dur"]) * 1000
                for event in document["traceEvents"]
                if event.get("cat") == "kernel" and event["name"].startswith("nccl")
            ]
        )
    difference = np.array(ends) - ends[0]
    # 40 ppm of a second, a whole µs of each time, and how far ranks leave a collective apart.
    assert np.ptp(difference, axis=1).max() < 40 * US + 2 * US + 3 * US
    assert 1 * MS < np.ptp(difference) < 400 * MS


def test_only_the_cut_rank_lacks_kernels(tmp_path: Path) -> None:
    machine = run(Job(Mode.FSDP2, ranks=4))
    write(machine, Style(cut_rank=3, compressed=True, named_by_host=True), tmp_path)
    counts = {}
    for path in tmp_path.iterdir():
        document = read(path)
        kernels = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
        counts[document["distributedInfo"]["rank"]] = len(kernels)
    assert counts[0] == counts[1] == counts[2] > counts[3] > 0.6 * counts[0]


def test_old_files_name_kernels_only(tmp_path: Path) -> None:
    machine = run(Job(Mode.DDP, ranks=4))
    write(machine, Style(Writer.OLD), tmp_path)
    document = read(tmp_path / "rank0.json")
    assert "baseTimeNanoseconds" not in document
    assert "pg_config" not in document["distributedInfo"]
    assert not [e for e in document["traceEvents"] if "Collective name" in e.get("args", {})]
    assert all(isinstance(e["ts"], int) for e in document["traceEvents"])


def test_launches_and_kernels_share_correlations(tmp_path: Path) -> None:
    machine = run(Job(Mode.FSDP1, ranks=4))
    write(machine, Style(), tmp_path)
    events = read(tmp_path / "rank1.json")["traceEvents"]
    calls = {e["args"]["correlation"] for e in events if e.get("cat") == "cuda_runtime"}
    kernels = [e for e in events if e.get("cat") == "kernel"]
    records = {e["args"]["External id"]: e for e in events if e["name"] == "record_param_comms"}
    assert all(kernel["args"]["correlation"] in calls for kernel in kernels)
    for kernel in kernels:
        if "Seq" in kernel["args"]:
            record = records[kernel["args"]["External id"]]
            assert record["args"]["Seq"] == kernel["args"]["Seq"]


def test_a_case_is_drawn_alike_each_time() -> None:
    assert case(3, 7) == case(3, 7) != case(4, 7)
