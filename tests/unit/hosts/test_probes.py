"""The device and the measure that a probe blames."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from app.hosts.probes import (
    Compared,
    JudgedDevice,
    Measure,
    Peers,
    ProbeView,
    compare,
    judge_device,
    sentence_of,
)

ALIKE = Peers(63, 649.0, 650.0, 651.0)
SCATTERED = Peers(63, 2000.0, 2900.0, 3000.0)


def device(index: str, **measures: Compared) -> JudgedDevice:
    by_measure = {Measure[name]: figure for name, figure in measures.items()}
    return judge_device(index, "NVIDIA H100", f"GPU-{index}", None, by_measure)


def test_what_confirms_is_named_and_not_what_is_only_lower_against_others_that_are_low() -> None:
    unclear = device("0", MATMUL=compare(650.0, ALIKE), MEMORY_COPY=compare(1800.0, SCATTERED))
    slow = device("1", MATMUL=compare(600.0, ALIKE), MEMORY_COPY=compare(1800.0, SCATTERED))
    view = ProbeView("node-1", guessed=False, at=datetime.now(UTC), devices=[unclear, slow])
    assert (view.outcome, unclear.outcome) == ("confirmed", "unclear")
    assert sentence_of(view).startswith("node-1: confirmed by probe: GPU 1 reaches 600 TFLOP/s")


def test_a_device_that_failed_is_named_before_slow_ones() -> None:
    failed = judge_device("2", "NVIDIA H100", "GPU-2", "CUDA error", {})
    slow = device("1", MATMUL=compare(300.0, ALIKE))
    view = ProbeView("node-1", guessed=False, at=datetime.now(UTC), devices=[slow, failed])
    assert sentence_of(view) == "node-1: confirmed by probe: GPU 2 failed: CUDA error"


def test_a_machine_that_lost_a_gpu_is_not_cleared_by_the_others() -> None:
    well = [device(index, MATMUL=compare(650.0, ALIKE)) for index in "01"]
    view = ProbeView("node-1", guessed=False, at=datetime.now(UTC), devices=well, gpus_there=3)
    assert view.outcome == "unclear"
    assert sentence_of(view) == (
        "node-1: unclear by probe: its latest session ran on 3 GPUs, and 2 of them were there"
    )
    assert replace(view, gpus_there=2).outcome == "cleared"
    slow = device("2", MATMUL=compare(600.0, ALIKE))
    assert replace(view, devices=[well[0], slow]).outcome == "confirmed"
