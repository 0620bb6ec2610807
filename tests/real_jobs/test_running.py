from __future__ import annotations

import json

import pytest

from tests.real_jobs.analyzing import Answer
from tests.real_jobs.judging import Judged
from tests.real_jobs.running import RETRIES, Retries, runs_for, trace_of
from tests.real_jobs.scenarios import SCENARIOS
from tests.real_jobs.truth import truth_of

SCENARIO = SCENARIOS["hwC-slow1.8"]
TRUTH = truth_of(SCENARIO, [1.6], [1.0])
QUIET, NOISY = 0.01, 0.15


def result(wrong: tuple[str, ...], noise: float | None) -> Judged:
    return Judged(SCENARIO, TRUTH, Answer(), wrong, noise)


def test_a_wrong_answer_after_a_noisy_healthy_run_may_be_retried() -> None:
    retries = Retries()
    assert retries.allow(result(("no verdict",), NOISY))
    assert retries.left == RETRIES - 1


@pytest.mark.parametrize(
    ("wrong", "noise"),
    [((), NOISY), (("no verdict",), QUIET), (("not run",), None), ((), QUIET)],
)
def test_neither_a_right_answer_nor_a_quiet_machine_nor_a_failure_is_retried(
    wrong: tuple[str, ...], noise: float | None
) -> None:
    retries = Retries()
    assert not retries.allow(result(wrong, noise))
    assert retries.left == RETRIES


def test_a_run_has_few_retries_however_noisy() -> None:
    retries = Retries()
    allowed = [retries.allow(result(("no verdict",), NOISY)) for _ in range(5)]
    assert allowed == [True] * RETRIES + [False] * (5 - RETRIES)


def test_a_launch_runs_the_healthy_job_first_and_each_reference_once() -> None:
    names = ("hwC-slow1.3", "hwC-heavy-last", "hwC-healthy", "hwC-gc")
    runs = runs_for([SCENARIOS[name] for name in names])
    assert runs == ["healthy", "slow1.3", "even1.25", "heavy-last", "gc"]


def test_a_trace_has_its_metadata_and_then_its_operations() -> None:
    row = '{"rank": 0, "dp": 0, "pp": 0, "step": 1, "op": "optimizer"}'
    header, *rows = trace_of(SCENARIOS["tpI-lengths"], [row]).decode().splitlines()
    assert rows == [row]
    document = json.loads(header)
    assert document["schema"] == "paceline.trace/1"
    meta = document["meta"]
    assert {key: meta[key] for key in ("dp", "pp", "vpp", "world")} == {
        "dp": 2,
        "pp": 2,
        "vpp": 2,
        "world": 4,
    }
    assert meta["layers"] == [2, 2]
    assert set(meta["hosts"]) == {"0", "1", "2", "3"}
    assert len(meta["sequence_lengths"]["1"][1]) == 8


def test_megatron_says_nothing_of_its_layers() -> None:
    header = trace_of(SCENARIOS["mc-healthy"], []).decode()
    assert "layers" not in json.loads(header)["meta"]
