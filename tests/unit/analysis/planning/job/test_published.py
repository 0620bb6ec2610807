"""Published measurements, predicted at their sizes, and compared with our own choice of sizes.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
(SC 2021, arXiv:2104.04473), table 1: GPT models of sequence 2,048 and vocabulary 51,200 on nodes of
8 A100 80 GB with NVLink 3 and 8 × 200 Gb/s. The operations are those of its equation 3, which
counts a block's recomputation; the optimizer was not divided and gradients had two bytes. Five of
ten rows are here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from app.analysis.planning.job.costs import GEMM_EFFICIENCY, forward_flops
from app.analysis.planning.job.search import search_job
from app.analysis.planning.job.spec import FixedParallelism, JobDevice, JobSpec, Recompute
from app.analysis.planning.transformer import Accelerator, Attention, Transformer


@dataclass(frozen=True)
class Row:
    heads: int
    hidden: int
    layers: int
    tp: int
    pp: int
    gpus: int
    batch: int
    tflops: float

    @property
    def spec(self) -> JobSpec:
        chip = Accelerator.known("A100")
        return JobSpec(
            Transformer(
                *(self.layers, self.hidden, self.heads, 51200, 2048, 1),
                *(4 * self.hidden, self.heads),
                attention=Attention.UNFUSED,
            ),
            (JobDevice(chip, self.gpus // 8, GEMM_EFFICIENCY, 300.0),),
            gpus_per_node=8,
            global_batch=self.batch,
            inter_node_gbytes_per_s=200.0,
            fixed=FixedParallelism(recompute=Recompute.FULL),
            shard_optimizer=False,
            gradient_bytes=2,
        )

    @property
    def sizes(self) -> FixedParallelism:
        dp = self.gpus // self.tp // self.pp
        return FixedParallelism(self.tp, self.pp, dp, recompute=Recompute.FULL)


ROWS = {
    "1.7 B": Row(24, 2304, 24, 1, 1, 32, 512, 137),
    "7.5 B": Row(32, 4096, 36, 4, 1, 128, 512, 142),
    "39.1 B": Row(64, 8192, 48, 8, 2, 512, 1536, 138),
    "145.6 B": Row(96, 12288, 80, 8, 8, 1536, 2304, 148),
    "529.6 B": Row(128, 20480, 105, 8, 35, 2520, 2520, 163),
}


@pytest.mark.parametrize("name", ROWS)
def test_predicts_what_was_measured_and_comes_near_what_was_chosen(name: str) -> None:
    row = ROWS[name]
    published = search_job(replace(row.spec, fixed=row.sizes))
    assert published is not None
    # Two forward passes, because of recomputation, and a backward pass of twice their cost each.
    operations = 4 * forward_flops(row.spec.transformer) * row.batch
    tflops = operations / row.gpus / published.plan.time_ps
    assert tflops == pytest.approx(row.tflops, rel=0.15)
    best = search_job(row.spec)
    assert best is not None
    assert best.optimal
    assert published.plan.time_ps <= 1.05 * best.plan.time_ps
