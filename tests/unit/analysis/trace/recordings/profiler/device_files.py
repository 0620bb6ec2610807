"""Profiles of a pipeline on GPUs without labels, made by a small simulation of 1F1B.

The host issues everything early and the device follows. Compute kernels are launched by the step's
own thread (forward) and by autograd's thread (backward). NCCL's kernels last from the time at which
their own rank is ready until the other rank is ready. Microbatches and stages are not named.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.unit.analysis.trace.recordings.kineto_files import KinetoFile

MS = 1_000_000
OWN_THREAD, AUTOGRAD_THREAD = 100, 200
_AT = 4_459_370_929_637_000
_LAUNCH_NS = 20_000
_WIRE_NS = MS // 2


@dataclass
class Job:
    """A job of several stages and two data-parallel ranks.

    Parameters
    ----------
    slow : tuple of (int, int)
        DP rank and stage of the slow worker.
    fused : bool
        A simultaneous send and receive are one kernel, which does not name its transfers.
    """

    stages: int = 3
    microbatches: int = 5
    steps: int = 6
    slow: tuple[int, int] = (1, 1)
    factor: float = 1.0
    fused: bool = True
    forward_ns: int = 8 * MS

    def files(self) -> list[KinetoFile]:
        """Return the files of all ranks; ranks of a stage are consecutive."""
        files = [self._file(rank) for rank in range(2 * self.stages)]
        at = _AT
        for step in range(self.steps):
            last = max(self._step(files, dp, at) for dp in range(2))
            at = self._end(files, step, at, last)
        return files

    def _file(self, rank: int) -> KinetoFile:
        dp, stage = rank % 2, rank // 2
        pipeline = [2 * other + dp for other in range(self.stages)]
        groups = {
            "default_pg": list(range(2 * self.stages)),
            "mesh_pp": pipeline,
            "mesh_dp": [2 * stage, 2 * stage + 1],
        }
        return KinetoFile(rank=rank, world=2 * self.stages, groups=groups)

    def _order(self, stage: int) -> list[tuple[bool, int]]:
        """Return (backward, microbatch) in the order of 1F1B."""
        ahead = min(self.stages - stage, self.microbatches)
        order = [(False, mb) for mb in range(ahead)]
        for mb in range(self.microbatches):
            order.append((True, mb))
            if ahead + mb < self.microbatches:
                order.append((False, ahead + mb))
        return order

    def _step(self, files: list[KinetoFile], dp: int, at: int) -> int:
        """Simulate a step of one pipeline and write its events; return the time of its end."""
        ends: dict[tuple[int, bool, int], int] = {}
        begins: dict[tuple[int, bool, int], int] = {}
        orders = [self._order(stage) for stage in range(self.stages)]
        place = [0] * self.stages
        free = [at + MS] * self.stages
        while any(place[stage] < len(orders[stage]) for stage in range(self.stages)):
            for stage in range(self.stages):
                while place[stage] < len(orders[stage]):
                    backward, mb = orders[stage][place[stage]]
                    source = stage + 1 if backward else stage - 1
                    needed = 0 <= source < self.stages
                    if needed and (source, backward, mb) not in ends:
                        break
                    there = ends[source, backward, mb] + _WIRE_NS if needed else 0
                    begin = max(free[stage], there)
                    took = self.forward_ns * (2 if backward else 1)
                    took = int(took * (self.factor if (dp, stage) == self.slow else 1))
                    begins[stage, backward, mb] = begin
                    ends[stage, backward, mb] = free[stage] = begin + took
                    place[stage] += 1
        for stage, order in enumerate(orders):
            self._write(files[2 * stage + dp], stage, order, at, begins, ends)
        return max(ends.values())

    def _write(  # noqa: PLR0917 - what is known of a stage
        self,
        file: KinetoFile,
        stage: int,
        order: list[tuple[bool, int]],
        at: int,
        begins: dict[tuple[int, bool, int], int],
        ends: dict[tuple[int, bool, int], int],
    ) -> None:
        host, pending, posted = at, list[tuple[str, int, int]](), at
        for backward, mb in order:
            source, target = (stage + 1, stage - 1) if backward else (stage - 1, stage + 1)
            if 0 <= source < self.stages:
                pending.append(("recv", source, begins[stage, backward, mb]))
            host = self._transfer(file, host, posted, pending)
            pending = []
            host = self._compute(file, host, begins, ends, (stage, backward, mb))
            posted = ends[stage, backward, mb]
            if 0 <= target < self.stages:
                pending.append(("send", target, posted + _WIRE_NS))
        self._transfer(file, host, posted, pending)

    def _transfer(
        self,
        file: KinetoFile,
        host: int,
        posted: int,
        pending: list[tuple[str, int, int]],
    ) -> int:
        fused = self.fused and len(pending) > 1
        number = len(file.events)
        for name, peer, done in pending:
            number = len(file.events)
            said = {"Dst_Rank" if name == "send" else "Src_Rank": peer}
            group = {"Process_Group_Description": "mesh_pp", "Collective_name": name}
            file.add(
                "record_param_comms",
                host,
                _LAUNCH_NS,
                cat="cpu_op",
                tid=OWN_THREAD,
                External_id=number,
                **said,
                **group,
            )
            host += _LAUNCH_NS
            if not fused:
                self._kernel(file, host, posted, done, number, name)
                host += _LAUNCH_NS
        if fused:
            done = max(done for *_, done in pending)
            self._kernel(file, host, posted, done, number + 1, "coalesced")
            host += _LAUNCH_NS
        return host

    def _kernel(  # noqa: PLR0917 - a kernel of NCCL
        self, file: KinetoFile, host: int, posted: int, done: int, number: int, name: str
    ) -> None:
        file.add(
            "cudaLaunchKernelExC",
            host,
            5000,
            cat="cuda_runtime",
            tid=OWN_THREAD,
            correlation=number,
        )
        file.add(
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
            max(posted, host),
            max(done - max(posted, host), 1000),
            cat="kernel",
            tid=20,
            correlation=number,
            External_id=number,
            Process_Group_Description="mesh_pp",
            Collective_name=name,
            device=0,
            stream=20,
        )

    def _compute(
        self,
        file: KinetoFile,
        host: int,
        begins: dict[tuple[int, bool, int], int],
        ends: dict[tuple[int, bool, int], int],
        which: tuple[int, bool, int],
    ) -> int:
        _, backward, _ = which
        thread = AUTOGRAD_THREAD if backward else OWN_THREAD
        begin, third = begins[which], (ends[which] - begins[which]) // 3
        if backward:
            file.add(
                "autograd::engine::evaluate_function: MmBackward0",
                host,
                3 * _LAUNCH_NS,
                cat="cpu_op",
                tid=thread,
            )
        for part in range(3):
            number = len(file.events)
            file.add("aten::mm", host, 10_000, cat="cpu_op", tid=thread, External_id=number)
            file.add(
                "cudaLaunchKernel",
                host + 2000,
                5000,
                cat="cuda_runtime",
                tid=thread,
                correlation=number,
            )
            file.add(
                "sm90_xmma_gemm_bf16",
                begin + part * third,
                third if part < 2 else ends[which] - begin - 2 * third,
                cat="kernel",
                tid=7,
                correlation=number,
                External_id=number,
                device=0,
                stream=7,
            )
            host += _LAUNCH_NS
        return host

    def _end(self, files: list[KinetoFile], step: int, at: int, last: int) -> int:
        """Reduce gradients and update parameters; return the start of the next step."""
        host, done = at + 40 * MS, last + 2 * MS
        for file in files:
            number = len(file.events)
            file.add("ProfilerStep#" + str(step), at, done + 3 * MS - at)
            file.add(
                "cudaLaunchKernelExC",
                host,
                5000,
                cat="cuda_runtime",
                tid=OWN_THREAD,
                correlation=number,
            )
            file.add(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                last,
                done - last,
                cat="kernel",
                tid=21,
                correlation=number,
                Process_Group_Description="mesh_dp",
                Collective_name="allreduce",
                device=0,
                stream=21,
            )
            file.add("Optimizer.step#AdamW.step", host + MS, MS, tid=OWN_THREAD)
            number = len(file.events)
            file.add(
                "cudaLaunchKernel",
                host + MS + 5000,
                5000,
                cat="cuda_runtime",
                tid=OWN_THREAD,
                correlation=number,
            )
            file.add(
                "multi_tensor_apply_kernel",
                done,
                MS,
                cat="kernel",
                tid=7,
                correlation=number,
                device=0,
                stream=7,
            )
        return done + 3 * MS
