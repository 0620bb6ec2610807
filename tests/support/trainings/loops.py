"""The training loops: the calls of each kind of training in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from tests.support.trainings.job import Kind, Training
from tests.support.trainings.machine import Conditions, Machine, Times

_LOADS_NS = 400_000
_OPTIMIZER_NS = 2_000_000
_NODE: Final = "autograd::engine::evaluate_function: "
_AUTOGRAD: Final = "autograd"
_SHARDED: Final = frozenset(
    {
        Kind.FSDP1,
        Kind.FSDP2,
        Kind.FSDP_CLIPS,
        Kind.FSDP_RECOMPUTES,
        Kind.FSDP_OFFLOADS,
        Kind.FSDP_COMPILED,
        Kind.HSDP,
        Kind.TENSOR_SHARDED,
    }
)
_TENSOR: Final = frozenset({Kind.TENSOR, Kind.TENSOR_SHARDED})
_COMPILED: Final = frozenset({Kind.DDP_COMPILED, Kind.FSDP_COMPILED})


def groups_of(training: Training) -> Mapping[str, Sequence[Sequence[int]]]:
    """Return the process groups of a training, first the group of all ranks."""
    ranks, inner = training.ranks, training.inner
    found: dict[str, Sequence[Sequence[int]]] = {"world": [range(ranks)]}
    if inner > 1:
        found["inner"] = [range(at, at + inner) for at in range(0, ranks, inner)]
        found["outer"] = [range(at, ranks, inner) for at in range(inner)]
    return found


class Loop:
    """Runs a training loop."""

    def __init__(self, training: Training) -> None:
        self.training = training
        fault, ranks = training.fault, training.ranks
        computes, hosts = np.ones(ranks), np.ones(ranks)
        if fault.slow_rank is not None:
            computes[fault.slow_rank] = fault.slow_factor
        hosts[slice(None) if fault.late_rank is None else fault.late_rank] = fault.late_factor
        links = {fault.link: fault.link_factor} if fault.link else {}
        self.machine = Machine(
            ranks,
            groups_of(training),
            Conditions(computes, hosts, links),
            lead_ns=training.lead_ns,
            latency_ns=training.latency_ns,
            seed=training.seed,
        )
        self.step_ends: list[Times] = []
        self._recorded: list[bool] = []
        kind = training.kind
        self._sharded = kind in _SHARDED
        self._compiled = kind in _COMPILED
        # The group of the ranks that hold the same parameters, or parts of them.
        data = "outer" if kind in _TENSOR or kind is Kind.CONTEXT else "world"
        self._shards = "inner" if kind is Kind.HSDP else data
        self._pending: list[Times] = []

    def run(self, recorded: Callable[[int], bool]) -> None:
        """Run all steps, recorded ones and others."""
        for step in range(self.training.steps):
            self.machine.recording = recorded(step)
            self._recorded.append(self.machine.recording)
            with self.machine.annotation(f"ProfilerStep#{step}"):
                self._step(step)
            self.step_ends.append(self.machine.stream().copy())

    @property
    def step_ns(self) -> float:
        """Return the mean duration of recorded steps in ns, without the first step."""
        ends = np.array([one.max() for one in self.step_ends])
        return float(np.diff(ends)[self._recorded[1:]].mean())

    def _step(self, step: int) -> None:
        kind = self.training.kind
        for round_ in range(self.training.rounds):
            self._load()
            if self.training.zeroes_late and round_ == 0:
                self._zero_gradients()
            self._forward(train=True)
            self._loss()
            self._backward(last=round_ + 1 == self.training.rounds)
        if kind is Kind.DDP_ADVERSARIAL:
            self._optimize("SGD")
            self._forward(train=True)
            self._loss()
            self._backward(last=True)
        self._check_gradients()
        self._optimize("AdamW")
        self._share_parameters()
        if not self.training.zeroes_late:
            self._zero_gradients()
        if kind is Kind.DDP_EVALUATES and step % 3 == 1:
            self._load()
            self._forward(train=False)

    def _zero_gradients(self) -> None:
        zeroes = "Optimizer.zero_grad#AdamW.zero_grad"
        with self.machine.annotation(zeroes), self.machine.operator("aten::zero_"):
            self.machine.kernel("vectorized_elementwise_kernel", 40_000, steady=True)

    def _check_gradients(self) -> None:
        kind, machine = self.training.kind, self.machine
        if kind is Kind.FSDP_CLIPS:
            with machine.operator("aten::linalg_vector_norm"):
                machine.kernel("void at::native::reduce_kernel<512, 1>", 150_000, steady=True)
            machine.collective("allreduce", "world", 60_000, waits=True)
        elif kind is Kind.DDP_SCALED:
            with machine.operator("aten::_amp_foreach_non_finite_check_and_unscale_"):
                machine.kernel("multi_tensor_apply_kernel", 200_000, steady=True)
        else:
            return
        with machine.operator("aten::item"):
            machine.copy("Memcpy DtoH (Device -> Pinned)", 2_000)
            machine.synchronize()

    def _share_parameters(self) -> None:
        kind, machine = self.training.kind, self.machine
        if kind is Kind.DDP_TWO_OPTIMIZERS:
            self._optimize("SGD")
        if kind is Kind.DDP_ZERO:
            for _ in range(self.training.ranks):
                machine.collective("broadcast", "world", 150_000, waits=True)
        if kind is Kind.SHARDED_GRADIENTS:
            for _ in range(self.training.layers):
                self._pending.append(machine.collective("_allgather_base", "world", 200_000))
            self._settle()

    def _load(self) -> None:
        fault = self.training.fault
        takes = np.full(self.training.ranks, _LOADS_NS, np.int64)
        if fault.loading_rank is not None:
            takes[fault.loading_rank] += fault.loading_ns
        self.machine.load(takes)
        if self.training.copies:
            with self.machine.operator("aten::to"):
                self.machine.copy("Memcpy HtoD (Pinned -> Device)", 30_000)

    def _forward(self, *, train: bool) -> None:
        training, machine = self.training, self.machine
        if training.kind.name.startswith("DDP") and train:
            with machine.annotation("DistributedDataParallel.forward"):
                self._layers(train=train)
        elif training.kind in {Kind.FSDP1, Kind.FSDP_CLIPS}:
            with machine.annotation("FullyShardedDataParallel.forward"):
                self._layers(train=train)
        else:
            self._layers(train=train)

    def _layers(self, *, train: bool) -> None:
        training, machine = self.training, self.machine
        ready = self._gather(0)
        for layer in range(training.layers):
            if self._sharded and training.kind not in {Kind.FSDP1, Kind.FSDP_CLIPS}:
                with machine.annotation(f"FSDP::pre_forward (layers.{layer})"):
                    following = self._gather(layer + 1)
            else:
                following = self._gather(layer + 1)
            if ready is not None:
                machine.wait(ready)
            ready = following
            self._layer(training.layer_ns, f"layers.{layer}")
            if training.kind is Kind.FSDP_OFFLOADS and train:
                machine.join("offload")
                with machine.operator("aten::copy_"):
                    machine.copy("Memcpy DtoH (Device -> Pinned)", 600_000, stream="offload")

    def _layer(self, takes_ns: float, name: str, *, backward: bool = False) -> None:
        training, machine = self.training, self.machine
        each = takes_ns / training.kernels
        kernels = [(f"kernel_{name}_{number}", each) for number in range(training.kernels)]
        if training.kind is Kind.DDP_GRAPHS:
            machine.graph([("sm90_xmma_gemm_bf16", each) for _ in kernels])
            return
        if self._compiled:
            for number, _ in enumerate(kernels):
                machine.kernel(f"triton_red_fused_mul_{number}", each)
            return
        exchanges = self._exchanges(backward=backward)
        if exchanges:
            exchanges()
        for number, _ in enumerate(kernels):
            with machine.operator("aten::linear" if not backward else "aten::mm"):
                for _ in range(training.operators):
                    with machine.operator("aten::view"):
                        pass
                with machine.operator("aten::addmm"):
                    machine.kernel("sm90_xmma_gemm_bf16bf16_bf16f32_tn", each)
            if number == len(kernels) // 2 and exchanges:
                exchanges()

    def _exchanges(self, *, backward: bool) -> Callable[[], object] | None:
        kind, machine = self.training.kind, self.machine
        if kind in _TENSOR:
            return lambda: machine.collective("allreduce", "inner", 200_000, waits=True)
        if kind is Kind.CONTEXT:
            name = "_reduce_scatter_base" if backward else "_allgather_base"
            return lambda: machine.collective(name, "inner", 150_000, waits=True)
        if kind is Kind.EXPERTS:
            return lambda: machine.collective("all_to_allv", "inner", 250_000, waits=True)
        return None

    def _loss(self) -> None:
        machine = self.machine
        with machine.operator("aten::cross_entropy_loss"), machine.operator("aten::log_softmax"):
            machine.kernel("cunn_SoftMaxForward", 60_000)
        with machine.operator("aten::ones_like"):
            machine.kernel("vectorized_elementwise_kernel", 3_000, steady=True)

    def _backward(self, *, last: bool) -> None:
        training, machine = self.training, self.machine
        ready = self._gather(training.layers - 1)
        for layer in reversed(range(training.layers)):
            following = self._gather(layer - 1) if layer else None
            if ready is not None:
                machine.wait(ready)
            ready = following
            name = "CompiledFunctionBackward" if self._compiled else "AddmmBackward0"
            if training.kind is Kind.DDP_GRAPHS:
                name = "GraphedBackward"
            with machine.operator(_NODE + name, thread=_AUTOGRAD), machine.operator(name):
                if training.kind is Kind.FSDP_RECOMPUTES:
                    self._layer(training.layer_ns, f"layers.{layer}")
                if training.kind is Kind.FSDP_OFFLOADS:
                    with machine.operator("aten::copy_"):
                        machine.copy("Memcpy HtoD (Pinned -> Device)", 600_000, stream="offload")
                self._layer(2 * training.layer_ns, f"layers.{layer}", backward=True)
            accumulate = "torch::autograd::AccumulateGrad"
            with (
                machine.operator(_NODE + accumulate, thread=_AUTOGRAD),
                machine.operator(accumulate),
            ):
                if training.rounds > 1 or training.kind is Kind.CONTEXT:
                    machine.kernel("vectorized_elementwise_kernel", 20_000, steady=True)
                if layer >= training.late_buckets:
                    self._reduce(last=last)
        if training.late_buckets:
            with machine.operator("torch.distributed.ddp.reducer::finalize", thread=_AUTOGRAD):
                for _ in range(training.late_buckets):
                    self._reduce(last=last)
        self._settle()

    def _gather(self, layer: int) -> Times | None:
        if not self._sharded or not 0 <= layer < self.training.layers:
            return None
        return self.machine.collective("_allgather_base", self._shards, self.training.transfer_ns)

    def _reduce(self, *, last: bool) -> None:
        training, machine = self.training, self.machine
        takes, kind = training.transfer_ns, training.kind
        if self._sharded:
            done = machine.collective("_reduce_scatter_base", self._shards, takes)
            if kind is Kind.HSDP and last:
                done = machine.collective("allreduce", "outer", takes / 2, after="nccl inner")
            self._pending.append(done)
        elif not last:
            return
        elif kind is Kind.SHARDED_GRADIENTS:
            self._pending.append(machine.collective("_reduce_scatter_base", "world", takes))
        elif kind is Kind.DDP_LOW_RANK:
            with machine.operator("aten::mm"):
                machine.kernel("sm90_xmma_gemm_bf16", 80_000, steady=True)
            machine.collective("allreduce", "world", takes / 8)
            machine.join("hook", "nccl world")
            machine.kernel("sm90_xmma_gemm_bf16", 80_000, stream="hook", steady=True)
            self._pending.append(machine.collective("allreduce", "world", takes / 8, after="hook"))
        else:
            if kind is Kind.DDP_HALVES:
                with machine.operator("aten::_to_copy"):
                    machine.kernel("vectorized_elementwise_kernel", 30_000, steady=True)
            group = self._shards
            self._pending.append(machine.collective("allreduce", group, takes))

    def _settle(self) -> None:
        for done in self._pending:
            self.machine.wait(done)
            if self.training.kind is Kind.DDP_HALVES:
                with self.machine.operator("aten::copy_"):
                    self.machine.kernel("vectorized_elementwise_kernel", 30_000, steady=True)
        self._pending.clear()

    def _optimize(self, name: str) -> None:
        machine = self.machine
        with machine.annotation(f"Optimizer.step#{name}.step"):
            for _ in range(4):
                with machine.operator("aten::_fused_adamw_"):
                    machine.kernel("multi_tensor_apply_kernel", _OPTIMIZER_NS / 4, steady=True)
