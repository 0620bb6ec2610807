"""What JAX's profiler writes of a real job is read as what the job did."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from app.analysis.report.build import analyze
from app.analysis.trace.model import Sizes, Trace
from app.cli.convert import read_recordings
from tests.support.extras import of_extra

of_extra("jax")
JOB = Path(__file__).parent / "worker" / "jax_training.py"
DEVICES, FIRST_STEP, STEPS = 4, 10, 5


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xprof")
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    }
    command = [sys.executable, str(JOB), str(folder), str(FIRST_STEP), str(STEPS)]
    subprocess.run(command, check=True, timeout=300, env=environment)  # noqa: S603 - our own program
    return folder


def test_devices_steps_and_collectives_are_those_of_the_job(recorded: Path) -> None:
    trace = read_recordings([recorded], None, None).trace

    assert trace.meta.sizes == Sizes(dp=DEVICES, pp=1)
    assert set(trace.step.tolist()) == set(range(FIRST_STEP, FIRST_STEP + STEPS))
    # Of each step and device at least the gradients' reduction, as many on each device.
    reductions = trace.op == trace.op_names.index("grads-reduce-scatter")
    counts = Counter(
        zip(trace.rank[reductions].tolist(), trace.step[reductions].tolist(), strict=True)
    )
    assert len(counts) == DEVICES * STEPS
    assert len(set(counts.values())) == 1
    report = analyze(trace).report
    assert report.arrivals is not None
    assert {one.rank for one in report.arrivals.ranks} == set(range(DEVICES))
    assert report.breakdown is not None
    assert all(one.computing_s > 0 for one in report.breakdown.ranks)


def test_the_trace_for_a_viewer_says_the_same(recorded: Path) -> None:
    (planes,) = recorded.rglob("*.xplane.pb")
    (viewers,) = recorded.rglob("*.trace.json.gz")

    def times(path: Path) -> list[tuple[int, int, int]]:
        trace: Trace = read_recordings([path], None, None).trace
        start = trace.start_ns - trace.start_ns.min()
        return sorted(
            zip(trace.rank.tolist(), start.tolist(), trace.duration_ns.tolist(), strict=True)
        )

    assert times(viewers) == times(planes)
