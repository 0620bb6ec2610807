"""A training step as its host executes it: DDP with buckets, FSDP with units gathered ahead."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.support.gpu_profiles.job import US, Job, Mode, Place
from tests.support.gpu_profiles.machine import (
    AUTOGRAD,
    COMPUTE,
    MAIN,
    WARM_UP,
    Machine,
    Span,
    Times,
)

_FIRST_STEP: Final = 10  # number of the first recorded step
_LATENCY_NS: Final = 25 * US
_LOADING_NS: Final = 400 * US
_BUCKET: Final = 25 * 1024 * 1024  # bytes; DDP's `bucket_cap_mb`
_FIRST_BUCKET: Final = 1024 * 1024  # bytes; so that reducing begins early
_STREAMS: Final = (20, 24)
_COPY_STREAM: Final = 28

_GEMM: Final = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_{}"
_ATTENTION: Final = "void pytorch_flash::flash_{}_kernel<pytorch_flash::Flash_kernel_traits<64>>()"
_ELEMENTS: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>(int)"
# Operator, its backward, kernels of both, and shares of a layer's forward and backward.
_OPERATORS: Final = (
    ("aten::addmm", "AddmmBackward0", _GEMM, 0.55, 0.28),
    ("aten::_scaled_dot_product_flash_attention", "ScaledDotProduct", _ATTENTION, 0.3, 0.32),
    ("aten::gelu", "GeluBackward0", _ELEMENTS, 0.15, 0.12),
)
# A weight's gradient is a second matrix product in the backward of `addmm`.
_ALL_REDUCE: Final = ("c10d::allreduce_", "nccl:all_reduce", "allreduce")
_COALESCED: Final = (
    "c10d::allreduce_coalesced_",
    "nccl:allreduce_coalesced",
    "allreduce_coalesced",
)
_ALL_GATHER: Final = ("c10d::_allgather_base_", "nccl:_all_gather_base", "_allgather_base")
_REDUCE_SCATTER: Final = (
    "c10d::_reduce_scatter_base_",
    "nccl:_reduce_scatter_base",
    "_reduce_scatter_base",
)


_FORWARD1: Final = "FullyShardedDataParallel.forward"
_FSDP1: Final = {
    "pre_forward": "_pre_forward",
    "post_forward": "_post_forward",
    "pre_backward": "_pre_backward_hook",
    "backward_prefetch": "_pre_backward_prefetch",
    "post_backward_reduce": "_post_backward_hook",
    "root_post_backward_callback": "_post_backward_final_callback",
    "all_gather": "rate_limiter",
    "all_gather_copy_out": "_use_unsharded_flat_param",
}


def run(job: Job) -> Machine:
    """Run a job: steps before the recording, then the recorded ones."""
    machine = Machine(job, job.fault)
    program = _Step(machine, job)
    for number in range(WARM_UP + job.steps):
        program.run(_FIRST_STEP - WARM_UP + number)
    return machine


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator of a layer: kernels with their shares of the layer's forward or backward."""

    name: str
    backward: str
    forward: list[tuple[str, float]]
    kernels: list[tuple[str, float]]  # of the backward


class _Step:
    """A training step of a job, as its host executes it."""

    def __init__(self, machine: Machine, job: Job) -> None:
        """Prepare the sizes of what is exchanged, and the streams for it."""
        self.machine, self.job = machine, job
        sharded = job.mode is not Mode.DDP
        self.sizes = (
            np.full(job.buckets, 2 * _BUCKET, dtype=float)
            if sharded
            else np.full(job.buckets, _BUCKET, dtype=float)
        )
        if not sharded and job.buckets > 1:
            self.sizes[0] = _FIRST_BUCKET
        self.transfer = job.exchange * 2 * job.forward_ns
        self.streams = _STREAMS[: job.streams]
        self.parameters_free: list[Times] = []  # when FSDP's units were last used
        self.sequence = 0  # of autograd, of the latest operator
        self.first = 0  # sequence number before this step

    def run(self, number: int) -> None:
        """Execute the step with a number."""
        machine, job = self.machine, self.job
        with machine.range(f"ProfilerStep#{number}", "user_annotation"):
            machine.pause(Place.BEGIN)
            self._load()
            with machine.range("Optimizer.zero_grad#AdamW.zero_grad", "user_annotation"):
                machine.work(60 * US)
            self.first = self.sequence
            if job.mode is Mode.DDP:
                self._ddp()
            else:
                self._fsdp()
            self._optimizer()
            if job.synchronized:
                with machine.range("aten::item"), machine.range("aten::_local_scalar_dense") as op:
                    machine.work(3 * US)
                    machine.call(
                        "cudaStreamSynchronize", op.external, until=machine.stream(COMPUTE)
                    )
            machine.work(100 * US)
            machine.pause(Place.END)
        machine.end_step()

    def _load(self) -> None:
        machine, fault = self.machine, self.job.fault
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        with machine.range(name, "user_annotation"):
            machine.work(_LOADING_NS)
            if fault.loading_rank is not None:
                machine.host = machine.host.copy()
                machine.host[fault.loading_rank] += fault.loading_ns
        with machine.range("aten::to"), machine.range("aten::copy_") as op:
            machine.work(self.job.host_ns)
            machine.copy_batch(op)

    def _operators(self) -> list[_Operator]:
        """Return the operators of a layer: their names, and their kernels with shares of it."""
        if not self.job.compiled:
            return [
                _Operator(
                    name,
                    backward,
                    [(kernel.format("fwd"), share)],
                    [(kernel.format(part), back) for part in ("bwd", "wgrad")[: 1 + (share > 0.5)]],
                )
                for name, backward, kernel, share, back in _OPERATORS
            ]
        fused = [("triton_red_fused_native_layer_norm_0", 0.1), (_GEMM.format("fwd"), 0.9)]
        back = [(_GEMM.format("bwd"), 0.5), ("triton_poi_fused_gelu_backward_1", 0.5)]
        return [_Operator("CompiledFunction", "CompiledFunctionBackward", fused, back)]

    def _forward_layer(self) -> None:
        for operator in self._operators():
            self.sequence += 1
            with self.machine.range(operator.name, sequence=self.sequence) as op:
                self.machine.work(self.job.host_ns)
                for kernel, share in operator.forward:
                    self.machine.kernel(kernel, share * self.job.forward_ns / self.job.layers, op)

    def _backward_layer(self, layer: int) -> None:
        """Compute the gradients of a layer, with the sequence numbers of its forward."""
        if layer == self.job.layers // 2:
            self.machine.pause(Place.BACKWARD)
        operators = self._operators()
        duration = 2 * self.job.forward_ns / self.job.layers
        last = self.first + (layer + 1) * len(operators)
        for back, operator in enumerate(reversed(operators)):
            function = f"autograd::engine::evaluate_function: {operator.backward}"
            with (
                self.machine.range(function, sequence=last - back),
                self.machine.range(operator.backward, sequence=last - back) as op,
            ):
                self.machine.work(self.job.host_ns)
                for kernel, share in operator.kernels:
                    self.machine.kernel(kernel, share * duration, op)

    def _loss(self) -> None:
        with self.machine.range("aten::cross_entropy_loss") as op:
            self.machine.work(2 * self.job.host_ns)
            name = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8>()"
            self.machine.kernel(name, 0.02 * self.job.forward_ns, op)

    def _ddp(self) -> None:
        machine, job = self.machine, self.job
        with machine.range("DistributedDataParallel.forward", "user_annotation"):
            for layer in range(job.layers):
                if layer == job.layers // 2:
                    machine.pause(Place.FORWARD)
                self._forward_layer()
        self._loss()
        machine.thread = AUTOGRAD
        machine.work(30 * US)
        # A bucket is ready after the layer that holds its first parameter.
        ready = np.ceil(np.cumsum(self.sizes) / self.sizes.sum() * job.layers - 1e-9)
        reduced: list[Times] = []
        waiting: list[int] = []
        issued = 0
        for layer in range(job.layers):
            self._backward_layer(job.layers - 1 - layer)
            function = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            with machine.range(function), machine.range("torch::autograd::AccumulateGrad"):
                with machine.range("aten::mul") as op:
                    machine.work(job.host_ns / 2)
                    machine.kernel(_ELEMENTS.format("MulFunctor<float>"), 12 * US, op)
                while issued < job.buckets and ready[issued] <= layer + 1:
                    waiting.append(issued)
                    issued += 1
                    if len(waiting) == (2 if job.coalesced else 1) or issued == job.buckets:
                        reduced.append(self._reduce(waiting, len(reduced)))
                        waiting = []
        with machine.range("torch.distributed.ddp.reducer::copy_bucket_to_grad") as op:
            for end in reduced:
                machine.wait(COMPUTE, end, op)
                if job.copies_back:
                    machine.kernel(_ELEMENTS.format("direct_copy_kernel_cuda"), 60 * US, op)
        machine.thread = MAIN

    def _reduce(self, buckets: list[int], number: int) -> Times:
        size = float(self.sizes[buckets].sum())
        transfer = _LATENCY_NS + self.transfer * size / float(self.sizes.sum())
        lane = number % len(self.streams)
        elements = int(size) // 4
        return self.machine.collective(
            _COALESCED if len(buckets) > 1 else _ALL_REDUCE,
            "AllReduce_Sum_f32",
            (elements, elements),
            transfer,
            stream=self.streams[lane],
            group=lane,
        )

    def _fsdp(self) -> None:
        machine, job = self.machine, self.job
        units = job.buckets
        of_unit = np.array_split(np.arange(job.layers), units)
        self.parameters_free = []
        optimized = machine.stream(COMPUTE)
        root = "FSDP::root_pre_forward"
        with machine.range(root if job.mode is Mode.FSDP2 else _FORWARD1, "user_annotation"):
            machine.work(50 * US)
            if job.mode is Mode.FSDP1:
                self._forward_units(of_unit, optimized)
        if job.mode is Mode.FSDP2:
            self._forward_units(of_unit, optimized)
        self._loss()
        machine.thread = AUTOGRAD
        machine.work(30 * US)
        # The last unit stays gathered after the forward.
        gathered: dict[int, Times] = {units - 1: machine.stream(COMPUTE)}
        scattered = machine.stream(COMPUTE)
        for unit in reversed(range(units)):
            with self._range("pre_backward", unit) as op:
                machine.work(20 * US)
                if unit not in gathered:
                    gathered[unit] = self._gather(unit)
                self._use(unit, gathered[unit], op)
            if unit:
                with self._range("backward_prefetch", unit - 1):
                    gathered[unit - 1] = self._gather(unit - 1)
            for layer in reversed(of_unit[unit].tolist()):
                self._backward_layer(layer)
            with self._range("post_backward_reduce", unit) as op:
                machine.work(20 * US)
                machine.kernel("void at::native::chunk_cat_cuda_kernel<float>()", 40 * US, op)
                self.parameters_free.append(machine.record(COMPUTE, op))
                scattered = self._scatter(unit)
        with self._range("root_post_backward_callback", 0) as op:
            machine.wait(COMPUTE, scattered, op)
        machine.thread = MAIN

    def _forward_units(self, of_unit: list[NDArray[np.int64]], optimized: Times) -> None:
        machine = self.machine
        for unit, layers in enumerate(of_unit):
            with self._range("pre_forward", unit) as op:
                machine.work(20 * US)
                self._use(unit, self._gather(unit, optimized if unit == 0 else None), op)
            for layer in layers:
                if layer == self.job.layers // 2:
                    machine.pause(Place.FORWARD)
                self._forward_layer()
            with self._range("post_forward", unit) as op:
                machine.work(10 * US)
                self.parameters_free.append(machine.record(COMPUTE, op))

    def _range(self, name: str, unit: int) -> AbstractContextManager[Span]:
        """Record a range as FSDP2 names it, or FSDP1 the range that does the same."""
        if self.job.mode is Mode.FSDP2:
            return self.machine.range(f"FSDP::{name} (layers.{unit})", "user_annotation")
        return self.machine.range(f"FullyShardedDataParallel.{_FSDP1[name]}", "user_annotation")

    def _gather(self, unit: int, after: Times | None = None) -> Times:
        """Gather a unit; at most two units are gathered and not yet used."""
        machine, job = self.machine, self.job
        size = float(self.sizes[unit])
        with self._range("all_gather", unit) as op:
            machine.work(15 * US)
            free = self.parameters_free[-2] if len(self.parameters_free) > 1 else after
            if free is not None and job.mode is Mode.FSDP1:
                # The rate limiter of FSDP1 stops the host.
                machine.call("cudaEventSynchronize", op.external, until=free)
            if free is not None:
                machine.wait(_COPY_STREAM, free, op)
            name = "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel()"
            machine.kernel(name, 15 * US, op, stream=_COPY_STREAM)
            copied = machine.record(_COPY_STREAM, op)
            return machine.collective(
                _ALL_GATHER,
                "AllGather",
                (int(size) // 2 // job.ranks, int(size) // 2),
                _LATENCY_NS + self._share(unit) * self.transfer / 3,
                stream=self.streams[0],
                after=copied,
            )

    def _use(self, unit: int, gathered: Times, op: Span) -> None:
        machine = self.machine
        with self._range("all_gather_copy_out", unit):
            machine.wait(COMPUTE, gathered, op)
            name = "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel()"
            machine.kernel(name, 30 * US, op)

    def _scatter(self, unit: int) -> Times:
        size = float(self.sizes[unit])
        return self.machine.collective(
            _REDUCE_SCATTER,
            "ReduceScatter_Sum_bf16",
            (int(size) // 2, int(size) // 2 // self.job.ranks),
            _LATENCY_NS + self._share(unit) * self.transfer / 3,
            stream=self.streams[-1],
        )

    def _share(self, unit: int) -> float:
        return float(self.sizes[unit] / self.sizes.sum())

    def _optimizer(self) -> None:
        machine, job = self.machine, self.job
        if job.clipping and job.mode is not Mode.DDP:
            with machine.range("aten::linalg_vector_norm") as op:
                machine.work(2 * job.host_ns)
                machine.kernel(_ELEMENTS.format("lpnorm_cuda"), 200 * US, op)
                norm = machine.collective(
                    _ALL_REDUCE,
                    "AllReduce_Sum_f32",
                    (1, 1),
                    1.5 * _LATENCY_NS,
                    stream=self.streams[0],
                )
                machine.wait(COMPUTE, norm, op)
        with machine.range("Optimizer.step#AdamW.step", "user_annotation"):
            machine.work(150 * US)
            with machine.range("aten::_fused_adamw_") as op:
                for _ in range(4):
                    machine.work(job.host_ns)
                    name = (
                        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Adam>()"
                    )
                    machine.kernel(name, 0.02 * job.forward_ns, op)
