"""Memory and time of a transformer's blocks, against published formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.planning.job.costs import GEMM_EFFICIENCY, forward_flops, stage_costs
from app.analysis.planning.job.search import sizes_of
from app.analysis.planning.job.spec import JobDevice, JobSpec, Recompute
from app.analysis.planning.transformer import Accelerator, Attention, Transformer

HIDDEN, HEADS, SEQUENCE = 4096, 32, 8192
GPT = Transformer(32, HIDDEN, HEADS, 50257, SEQUENCE, 1, 4 * HIDDEN, HEADS)


def spec(attention: Attention) -> JobSpec:
    device = JobDevice(Accelerator.known("H100"), 2, GEMM_EFFICIENCY, 450.0)
    return JobSpec(replace(GPT, attention=attention), (device,), 8, 64, 400.0)


def stored_bytes(attention: Attention, recompute: Recompute = Recompute.NONE) -> float:
    job = spec(attention)
    return stage_costs(job, job.devices[0], 8, 1, recompute).stored_bytes


def test_unfused_attention_stores_what_korthikanti_et_al_count() -> None:
    whole = SEQUENCE * HIDDEN * (34 + 5 * HEADS * SEQUENCE / HIDDEN) / 8
    assert stored_bytes(Attention.UNFUSED) == pytest.approx(whole)
    without_scores = SEQUENCE * HIDDEN * 34 / 8
    assert stored_bytes(Attention.UNFUSED, Recompute.SELECTIVE) == pytest.approx(without_scores)


def test_flash_attention_stores_no_scores_and_is_faster() -> None:
    statistics = 4 * HEADS * SEQUENCE / 8
    assert stored_bytes(Attention.FLASH) == SEQUENCE * HIDDEN * 34 / 8 + statistics
    times = {}
    for attention in Attention:
        job = spec(attention)
        times[attention] = stage_costs(job, job.devices[0], 8, 1, Recompute.NONE).block_ps
    assert times[Attention.FLASH] < times[Attention.UNFUSED]


def test_flash_attention_needs_no_selective_recomputation() -> None:
    modes = {
        attention: {sizes.recompute for sizes in sizes_of(spec(attention))}
        for attention in Attention
    }
    assert modes[Attention.UNFUSED] == set(Recompute)
    assert modes[Attention.FLASH] == {Recompute.NONE, Recompute.FULL}


def test_utilization_counts_the_scores_of_all_tokens_for_both() -> None:
    assert forward_flops(spec(Attention.FLASH).transformer) == forward_flops(
        spec(Attention.UNFUSED).transformer
    )
