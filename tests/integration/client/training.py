"""Small jobs of several ranks, each requested by ``["DIRECTORY", "--kind", "ddp", …]``.

A job writes each rank's losses, and the outcome of the rank's shares. Options name its faults.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import json
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import paceline_client.torch as paceline
from paceline_client import RetryPolicy
from paceline_client.torch import sessions
from tests.integration.client.lasting import Lasting
from tests.integration.client.sharing import Experts, MegatronExperts, Sequences

WIDTH = 16
BATCH = 8
# Time limit in seconds of a job, which ends by itself even if the test has failed.
LIMIT_S = 100
# An unavailable server refuses at once; the timeout is for an answer that a busy machine delays.
QUICK = RetryPolicy(give_up_after_s=0.5, first_wait_s=0.1, longest_wait_s=0.1, timeout_s=30)


def model() -> nn.Module:
    """Return the whole model, with the same weights on every rank."""
    torch.manual_seed(7)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))


# Seconds that the compiler takes for its first graph.
COMPILES_S = [0.0]


def _slowly(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
    """Compile nothing, but take some time for it."""
    time.sleep(COMPILES_S.pop() if COMPILES_S else 0.0)
    compiled: Callable[..., Any] = graph.forward
    return compiled


class Loop:
    """Data-parallel ranks, or a single one, with a loop over two microbatches."""

    def __init__(self, kind: str, rank: int, ranks: int) -> None:
        self.model: Any = model()
        if kind == "ddp":
            # Several buckets, so that their reductions overlap the backward.
            self.model = DistributedDataParallel(self.model, bucket_cap_mb=0.001)
        elif kind == "powersgd":
            self.model = DistributedDataParallel(self.model)
        elif kind == "fsdp2":
            for layer in self.model:
                fully_shard(layer)
            fully_shard(self.model)
        elif kind == "compiled":
            self.model = torch.compile(DistributedDataParallel(self.model), backend=_slowly)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.rank, self.ranks = rank, ranks

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        return paceline.attach(url, "job", model=self.model, **how)

    def slow_down(self, seconds: float) -> None:
        """Make each forward pass of this rank take longer."""
        last = self.model.module if hasattr(self.model, "module") else self.model
        last[-1].register_forward_pre_hook(lambda *_: time.sleep(seconds))

    def step(self, number: int) -> float:
        generator = torch.Generator().manual_seed(100 * number + self.rank)
        total = 0.0
        for _ in range(2):
            batch = torch.randn(BATCH, WIDTH, generator=generator)
            loss = self.model(batch).square().mean()
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


class Pipeline:
    """Two or more stages with two chunks each, in PyTorch's interleaved zero-bubble schedule."""

    def __init__(self, rank: int, ranks: int) -> None:
        whole = model()
        self.mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))
        stages = []
        for chunk in range(2):
            index = chunk * ranks + rank
            part = nn.Sequential(whole[index % len(whole)])
            example = torch.zeros(BATCH // 4, WIDTH)
            stages.append(
                PipelineStage(
                    part,
                    index,
                    2 * ranks,
                    torch.device("cpu"),
                    input_args=(example.requires_grad_(index > 0),),
                    output_args=(torch.zeros_like(example).requires_grad_(),),
                    group=self.mesh.get_group(),
                )
            )
        self.schedule = ScheduleInterleavedZeroBubble(stages, 4, loss_fn=nn.functional.mse_loss)
        self.optimizer = torch.optim.Adam([p for s in stages for p in s.submod.parameters()])
        self.first, self.last = rank == 0, rank == ranks - 1

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        return paceline.attach(url, "job", schedule=self.schedule, mesh=self.mesh, **how)

    def slow_down(self, seconds: float) -> None:
        """Make each forward pass of this rank take longer."""
        for stage in self.schedule._stages:
            stage.submod.register_forward_pre_hook(lambda *_: time.sleep(seconds))

    def step(self, number: int) -> float:
        batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(number))
        losses: list[torch.Tensor] = []
        given = (batch,) if self.first else ()
        if self.last:
            self.schedule.step(*given, target=torch.zeros_like(batch), losses=losses)
        else:
            self.schedule.step(*given)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(sum(loss.item() for loss in losses))


def serve() -> int:
    """Run the jobs of standard input, a JSON list of options a line, each in forked processes.

    A test run then imports PyTorch once. The answer to a line is the job's exit code.
    """
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            words = json.loads(line)
            Path(words[0]).mkdir(parents=True, exist_ok=True)
            log = os.open(f"{words[0]}/log", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os._exit(run(words))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201
    return 0


def run(words: list[str]) -> int:
    """Fork the ranks of a job and wait for them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--record", default="2:4", help="first step, and how many")
    parser.add_argument("--url", help="of the server; without it nothing is attached")
    parser.add_argument("--twice", action="store_true", help="without the client, then with it")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--fault-at", type=int, default=4, help="step")
    parser.add_argument("--stands-s", type=float, default=0.0, help="what may take long")
    parser.add_argument("--chunk-every-s", type=float, help="how often a rank sends")
    parser.add_argument("--relay", default="rank")
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--slow", type=int, default=-1, help="rank that computes longer")
    parser.add_argument("--slow-s", type=float, default=0.03, help="in each forward")
    parser.add_argument("--work-s", type=float, default=0.02, help="of a job that lasts, a step")
    parser.add_argument("--pulse-s", default="5")
    parser.add_argument("--no-session", action="store_true", help="the pulse alone")
    given = parser.parse_args(words)
    signal.alarm(LIMIT_S + int(given.stands_s))
    torch.set_num_threads(1)
    given.directory.mkdir(parents=True, exist_ok=True)
    os.environ["PACELINE_PULSE_S"] = given.pulse_s
    os.environ.setdefault("PACELINE_SPOOL", str(given.directory / "spool"))
    if given.fault.startswith("leave"):
        # The store is not a file, which would outlive its rank.
        with socket.create_server(("127.0.0.1", 0)) as free:
            given.port = free.getsockname()[1]
    pids = [_fork(given, rank) for rank in range(given.ranks)]
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)


def _fork(given: argparse.Namespace, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    # A forked child does not inherit its parent's alarm.
    signal.alarm(LIMIT_S + int(given.stands_s))
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(given.ranks)}
    code = 1
    try:
        train(given, rank)
        code = 0
        if given.fault.startswith("leave"):
            _leave(given, rank)
    except Leaving:
        # Exceptions end the interpreter, as in any script.
        raise
    except SystemExit:
        code = 0
    except Exception:  # noqa: BLE001 - told here, since this process ends without a caller
        traceback.print_exc()
    # The exit handlers of a normal end, which os._exit skips.
    atexit._run_exitfuncs()
    os._exit(code)


class Leaving(SystemExit):
    """Ends the interpreter of the rank, not only its process."""


class Ending:
    """Delays the end of the interpreter, when no thread may return any more."""

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __del__(
        self, make: Callable[..., int] = os.open, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        make(self._mark, os.O_CREAT)
        sleep(1.0)


# This object is deleted when the interpreter clears its modules.
ENDING: list[Ending] = []


def _leave(given: argparse.Namespace, rank: int) -> None:
    """End the interpreters of the other ranks while rank 0, and its store, is killed."""
    mark = given.directory / "ending"
    if given.fault == "leave pending":
        raise Leaving(0)
    if rank:
        ENDING.append(Ending(mark))
        raise Leaving(0)
    atexit._run_exitfuncs()
    while not mark.exists():
        time.sleep(0.01)
    time.sleep(0.2)
    os._exit(0)


def _store(given: argparse.Namespace, rank: int) -> dist.Store:
    if not given.fault.startswith("leave"):
        return dist.FileStore(str(given.directory / "store"), given.ranks)
    wait = timedelta(seconds=LIMIT_S)
    return dist.TCPStore("127.0.0.1", given.port, given.ranks, is_master=rank == 0, timeout=wait)


def train(given: argparse.Namespace, rank: int) -> None:
    """Train one rank."""
    store = _store(given, rank)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=given.ranks)
    if given.fault == "another order":
        GROUPS[:] = [dist.new_group(range(given.ranks)) for _ in range(2)]
        for group in GROUPS:
            dist.all_reduce(torch.ones(8), group=group)
    kinds = given.kind.split(",")
    for kind in kinds:
        # Each kind runs without and then with the client.
        ways = (None, given.url) if len(kinds) > 1 or given.twice else (given.url,)
        for url in ways:
            given.kind = kind
            name = f"{kind}-{'without' if url is None else 'with'}-" if len(ways) > 1 else ""
            document = _train(given, rank, url)
            (given.directory / f"{name}rank-{rank}.json").write_text(
                json.dumps(document, default=str)
            )
    dist.destroy_process_group()


def _job(given: argparse.Namespace, rank: int) -> Any:  # noqa: ANN401 - one of several
    kind, ranks = given.kind, given.ranks
    if kind == "pipelining":
        return Pipeline(rank, ranks)
    if kind == "lasting":
        return Lasting(given.directory, given.work_s)
    sharing = {"experts": Experts, "megatron": MegatronExperts, "sequences": Sequences}
    return sharing[kind](rank, ranks) if kind in sharing else Loop(kind, rank, ranks)


def _attach(given: argparse.Namespace, job: Any, url: str) -> paceline.Monitor:  # noqa: ANN401
    monitor: paceline.Monitor = job.attach(
        url, every=None, warmup=1, retry=QUICK, relay=given.relay
    )
    if not given.no_session:
        start, steps = map(int, given.record.split(":"))
        monitor.record(steps, at=start)
    return monitor


def _train(given: argparse.Namespace, rank: int, url: str | None) -> dict[str, Any]:
    COMPILES_S[:] = [given.stands_s]
    job = _job(given, rank)
    monitor = None
    if given.fault == "disk full":
        # Writes beyond the limit fail as on a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    if given.chunk_every_s is not None:
        vars(sessions)["_CHUNK_EVERY_S"] = given.chunk_every_s
    if url is not None:
        monitor = _attach(given, job, url)
        if given.slow == rank:
            job.slow_down(given.slow_s)
    if given.kind == "powersgd":
        _compress(job.model)
    losses = []
    for number in _steps(given, job):
        losses.append(job.step(number))
        time.sleep(given.pause_s)
        _fault(given, rank, number, monitor)
        if number == given.fault_at:
            _stand(given, rank, job)
            _call_in_another_order(given, rank)
            _take_long(given, rank, monitor)
        if monitor is not None:
            monitor.step()
        (given.directory / f"at-{rank}").write_text(str(number))
    _close(given, monitor)
    if given.fault == "disk full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return _document(losses, monitor)


def _steps(given: argparse.Namespace, job: Any) -> Iterator[int]:  # noqa: ANN401
    for number in range(given.steps):
        yield number
        if isinstance(job, Lasting) and job.is_last(number):
            return


def _close(given: argparse.Namespace, monitor: paceline.Monitor | None) -> None:
    if monitor is not None and not given.fault.startswith("leave"):
        # After the faults "leave…" the monitor closes itself at exit, when all files are written.
        monitor.close()


def _compress(model: Any) -> None:  # noqa: ANN401
    # DDP accepts one communication hook only, registered here after the client is attached.
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _document(losses: list[float], monitor: paceline.Monitor | None) -> dict[str, Any]:
    told = [] if monitor is None else [vars(outcome) for outcome in monitor.outcomes]
    counts = None if monitor is None else monitor.pulse_counts
    return {
        "losses": [loss.hex() for loss in losses],
        "outcomes": told,
        "pulse": None if counts is None else vars(counts),
    }


def _fault(
    given: argparse.Namespace, rank: int, number: int, monitor: paceline.Monitor | None
) -> None:
    """Cause the requested fault in the middle of a session."""
    if number != given.fault_at:
        return
    last = given.ranks - 1
    if (given.fault, rank) in {("kill", last), ("kill first", 0)}:
        os.kill(os.getpid(), signal.SIGKILL)
    if monitor is not None:
        _before_leaving(given.fault, rank, monitor)
    if given.fault == "fork":
        pid = os.fork()
        if not pid:
            # A forked child, like a worker of a data loader, computes and ends without sending
            # anything.
            model()(torch.zeros(1, WIDTH))
            if monitor is not None:
                monitor.step()
                monitor.close()
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(pid, 0)
    if given.fault == "spawn":
        # Without `__file__`, the spawned child does not import this module again, which takes half
        # a minute on a busy machine.
        vars(sys.modules["__main__"]).pop("__file__", None)
        child = multiprocessing.get_context("spawn").Process(target=print)
        child.start()
        child.join()
    if given.fault == "exit":
        sys.exit(0)
    if given.fault == "clock":
        real = time.time_ns
        time.time_ns = lambda: real() + 3600 * 10**9


def _stand(given: argparse.Namespace, rank: int, job: Any) -> None:  # noqa: ANN401
    """Hang, on the last rank, until the test has seen it."""
    fault, seen = given.fault, given.directory / "seen"
    if fault == "die" and rank == 0:
        # Rank 0 waits too: as with NCCL, no closed connection shows it that the rank has ended.
        os.open(seen, os.O_RDONLY)
    if rank != given.ranks - 1:
        return
    if fault.startswith("sleep"):
        os.open(seen, os.O_RDONLY)
    if fault == "forward":

        def _in_forward(*_: object) -> None:
            hook.remove()
            os.open(seen, os.O_RDONLY)

        hook = job.model.module[-1].register_forward_pre_hook(_in_forward)
    if fault == "loader":
        next(iter(DataLoader(Samples(seen))))
    if fault == "hold the lock":
        # Unlike other blocking calls, this one keeps the interpreter's lock.
        ctypes.PyDLL(None).open(str(seen).encode(), os.O_RDONLY)
    if fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        _stop_until(seen)


def _call_in_another_order(given: argparse.Namespace, rank: int) -> None:
    """Call two collectives, on the last rank in the other order, until the test has seen it."""
    if given.fault != "another order":
        return
    values = torch.ones(8), torch.ones(8)
    if rank != given.ranks - 1:
        dist.all_reduce(values[0], group=GROUPS[0])
        dist.all_reduce(values[1], group=GROUPS[1])
        return

    def make_up() -> None:
        os.open(given.directory / "seen", os.O_RDONLY)
        dist.all_reduce(values[0], group=GROUPS[0])

    late = threading.Thread(target=make_up)
    late.start()
    dist.all_reduce(values[1], group=GROUPS[1])
    late.join()


def _stop_until(seen: Path) -> None:
    process = os.getpid()
    if not os.fork():
        os.open(seen, os.O_RDONLY)
        os.kill(process, signal.SIGCONT)
        os._exit(0)
    os.kill(process, signal.SIGSTOP)


class Samples(Dataset):  # type: ignore[misc]
    """Samples that arrive once the test has seen that they are missing."""

    def __init__(self, seen: Path) -> None:
        self._seen = seen

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> torch.Tensor:
        os.open(self._seen, os.O_RDONLY)
        return torch.zeros(1)


def _take_long(given: argparse.Namespace, rank: int, monitor: paceline.Monitor | None) -> None:
    """Do the requested long work between two steps."""
    if monitor is None:
        return
    if given.fault == "checkpoint" and rank == 0:
        with monitor.between("checkpoint"):
            time.sleep(given.stands_s)
    if given.fault == "evaluation" and rank == given.ranks - 1:
        with monitor.between("evaluation"), torch.no_grad():
            whole, until_s = model(), time.monotonic() + given.stands_s
            while time.monotonic() < until_s:
                whole(torch.zeros(BATCH, WIDTH))
                time.sleep(0.05)


# Two groups of all ranks, whose collectives are called in different orders.
GROUPS: list[dist.ProcessGroup] = []
# Buffers that gloo's transfers and collectives write to.
PENDING: list[Any] = []


def _before_leaving(fault: str, rank: int, monitor: paceline.Monitor) -> None:
    if fault == "leave broken" and rank:
        monitor._break(RuntimeError("as if something had failed inside of a step"))
    if fault == "leave pending":
        _begin_without_end(rank, monitor)


def _begin_without_end(rank: int, monitor: paceline.Monitor) -> None:
    for tag, big in enumerate((torch.zeros(8), torch.zeros(3_000_000))):
        PENDING.append(monitor.watch("forward-recv", dist.irecv(big, 1 - rank, tag=tag)))
        PENDING.append(monitor.watch("backward-send", dist.isend(big, 1 - rank, tag=8 + tag)))
    # A separate group, so that the training's own collectives are not affected.
    group = dist.new_group([0, 1])
    if rank == 0:
        work = dist.all_reduce(torch.zeros(8), group=group, async_op=True)
        PENDING.append(monitor.watch("grads-reduce-scatter", work))


if __name__ == "__main__":
    sys.exit(serve())
