"""Compilation of the planner's loops before the first plan."""

from __future__ import annotations

from app.analysis.planning.job.build import job_document
from app.analysis.planning.job.plan import plan_job
from app.analysis.planning.job.spec import FixedParallelism, JobDevice, JobSpec
from app.analysis.planning.plan import plan
from app.analysis.planning.spec import OBJECTIVES, DeviceType, Layer, Spec
from app.analysis.planning.transformer import Accelerator, Transformer


def warm_up() -> None:
    """Compile the planner's loops (takes seconds), or load the loops from the disk cache."""
    layers = tuple(Layer(1.0, 2.0) for _ in range(4))
    devices = (DeviceType("slow", 1, 2), DeviceType("fast", 1, 2, speed=2.0))
    for objective in OBJECTIVES:
        plan(Spec(layers, 1.0, devices, microbatches=8), objective=objective)
    shape = Transformer(4, 256, 4, 1000, 128, 1, 1024, 4)
    types = tuple(
        JobDevice(Accelerator.known(name), nodes, 0.5, 100.0)
        for name, nodes in (("A100", 2), ("H100", 1))
    )
    job_document(plan_job(JobSpec(shape, types, 2, 8, 10.0)))
    chunks = FixedParallelism(tp=2, pp=2, interleave=2)
    job_document(plan_job(JobSpec(shape, types[:1], 2, 8, 10.0, chunks)))
