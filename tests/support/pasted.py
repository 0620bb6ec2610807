"""Texts that people paste about a job that hangs: of py-spy, ncclras and PyTorch's watchdog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

Frames = Sequence[tuple[str, str, int]]


def py_spy_text(frames: Frames, pid: int = 71, *, colored: bool = False, children: int = 0) -> str:
    """Return what `py-spy dump` prints about a process, and about the processes it has started."""

    def bold(text: object) -> str:
        return f"\x1b[1m\x1b[33m{text}\x1b[0m" if colored else str(text)

    def process(number: int, own: Frames, parent: int | None) -> Iterator[str]:
        yield f"Process {bold(number)}: /usr/bin/python train.py --lr 1e-4"
        yield f"Python v{bold('3.12.3')} (/usr/bin/python3.12)"
        if parent is not None:
            yield f"Parent Process {bold(parent)}: /usr/bin/python train.py"
        yield ""
        yield f'Thread {bold(number)} (idle): "MainThread"'
        for function, file, line in own:
            yield f"    {function} ({file}:{line})"
            yield "        Locals:"
            yield "            shape: (4, 8)"
        yield f'Thread {bold("0x7F2B1C")} (active+gil): "pin memory"'
        yield "    loop (torch/utils/data/_utils/pin_memory.py:55)"
        yield "    clone (libc.so.6)"

    lines = [*process(pid, frames, None)]
    for child in range(pid + 1, pid + 1 + children):
        lines += process(child, [("worker_loop", "torch/utils/data/_utils/worker.py", 9)], pid)
    return "\n".join(lines) + "\n"


def ras_text(
    counts: Sequence[Mapping[str, int] | None],
    *,
    group: int = 0,
    size: int | None = None,
    has_table: bool = True,
    most_listed: int = 8,
) -> str:
    """Return what `ncclras` prints about a communicator; None for a rank that does not answer.

    It lists the ranks of a number that at most `most_listed` ranks have launched.
    """

    def where(rank: int) -> str:
        return f"GPU {rank % 8} (NVML {rank % 4}) managed by process {900 + rank} on node 10.0.0.7"

    heard = {rank: own for rank, own in enumerate(counts) if own is not None}
    silent = [rank for rank, own in enumerate(counts) if own is None]
    kinds = sorted({kind for own in heard.values() for kind in own})
    unlike = [kind for kind in kinds if len({own.get(kind, 0) for own in heard.values()}) > 1]
    world = len(counts) if size is None else size
    errors = "MISMATCH" if unlike else "INCOMPLETE" if silent else "OK"
    lines = ["NCCL version 2.27.3 compiled with CUDA 12.9", "CUDA runtime version 12090", ""]
    if has_table:
        lines += [
            "Job summary", "===========", "",
            "  Nodes  Processes         GPUs  Processes     GPUs",
            "(total)   per node  per process    (total)  (total)",
            f"{1:7}{len(counts):11}{1:13}{len(counts):11}{len(counts):9}", "",
            "Communicators... (0.00s)", "=============", "",
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
            "    #  in group  per comm  per node  per comm  in group",
            f"{group:5}{1:10}{1:10}{'4-8':>10}{world:10}{len(heard):10}   RUNNING  {errors}", "",
        ]  # fmt: skip
    lines += ["Errors", "======", ""]
    if silent:
        lines += [f"#{group}-0 (5c1d90ab12ef7744) INCOMPLETE"]
        lines += [f"  Missing communicator data from {len(silent)} ranks"]
        lines += [f"  Rank {rank} -- {where(rank)}" for rank in silent]
        lines += [""]
    lines += ["Warnings", "========", ""]
    if unlike:
        lines += [f"#{group}-0 (5c1d90ab12ef7744) MISMATCH"]
    for kind in unlike:
        lines += [f"  Communicator ranks have different {kind} operation counts"]
        for number, many in Counter(own.get(kind, 0) for own in heard.values()).most_common():
            has = f"launched up to operation {number}" if number else "not launched any operations"
            ranks = [rank for rank, own in heard.items() if own.get(kind, 0) == number]
            if many == 1:
                lines += [f"  Rank {ranks[0]} has {has} -- {where(ranks[0])}"]
                continue
            lines += [f"  {many} ranks have {has}"]
            if many <= most_listed:
                lines += [f"  Rank {rank} -- {where(rank)}" for rank in ranks]
        lines += [""]
    return "\n".join(lines) + "\n"


def watchdog_log(
    statuses: Mapping[int, tuple[int, int]],
    *,
    group: str = "PG ID 0 PG GUID 0(default_pg) ",
    members: Sequence[int] = (),
    has_prefix: bool = True,
    operation: str = "ALLREDUCE",
    numel: Mapping[int, int] | int = 4096,
    hour: int = 3,
) -> str:
    """Return the watchdog's lines of ranks by the last operations they enqueued and completed.

    Parameters
    ----------
    members : sequence of int
        Ranks of the group; those with a status by default.
    """
    lines = ["step 811 | loss 2.31 | 1.94 s"]
    for rank, (enqueued, completed) in statuses.items():
        own = (list(members) or sorted(statuses)).index(rank) if group[:7] != "PG ID 0" else rank
        at = f"[rank{rank}]:" if has_prefix else ""
        begin = f"{at}[E0410 {hour:02}:11:09.7 ProcessGroupNCCL.cpp:"
        prefix = f"[{group}Rank {own}]"
        status = f"ast enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
        if enqueued > completed:
            size = numel if isinstance(numel, int) else numel[rank]
            work = (
                f"WorkNCCL(SeqNum={completed + 1}, OpType={operation}, NumelIn={size}, "
                f"NumelOut={size}, Timeout(ms)=600000) ran for 600004 milliseconds"
            )
            caught = f"[Rank {own}] Watchdog caught collective operation timeout: {work}"
            failed = f"{prefix} Exception detected by watchdog at work: {completed + 1}, l{status}"
            lines += [f"{begin}629] {caught} before timing out.", f"{begin}1785] {failed}"]
        received = f"{prefix} Received a dump signal due to a collective timeout. L{status}This is"
        lines += [f"Epoch 3:  81%|####  | 811/1000\r{begin}1858] {received}"]
    return "\n".join(lines) + "\n"
