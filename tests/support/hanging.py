"""Jobs that hang, executed by a small simulator that shares no code with the product.

Each rank's program calls collectives of its groups in the same global order. Its host enqueues a
few ahead. A collective completes on a rank when all of its ranks have enqueued it and have
completed the collectives that they enqueued before. A rank's host can stop before a collective, or
its device in one.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

THOUSAND, THOUSAND_CULPRIT = 1024, 341
NAMES = ("nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base")
BEGIN_NS = 1_700_000_000_000_000_000
# The stack of the calls of collectives: function, file and line, the innermost frame first.
_LIBRARY = "/opt/conda/lib/python3.11/site-packages/torch/distributed"
_TRAINING = "/workspace/megatron/training/training.py"
_OUTER = (
    *(("train_step", _TRAINING, 701), ("train", _TRAINING, 1200), ("pretrain", _TRAINING, 366)),
    *(("main", "/workspace/pretrain_gpt.py", 90), ("<module>", "/workspace/pretrain_gpt.py", 99)),
)
CALLED_AT = tuple(
    (
        (name, f"{_LIBRARY}/distributed_c10d.py", 2000 + line),
        ("wrapper", f"{_LIBRARY}/c10d_logger.py", 81),
        *(("_reduce", f"/workspace/megatron/core/{part}.py", line), *_OUTER),
    )
    for part in ("tensor_parallel/layers", "distributed/param_and_grad_buffer", "pipeline")
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
    for line in range(100, 900, 100)
)


@dataclass
class Hanging:
    """A job of ranks that call collectives in turn.

    Parameters
    ----------
    rounds : sequence of sequence of ranks
        The groups that call a collective in each round; a rank is in at most one group of a round.
    host_stops, device_stops : mapping of int to int
        By rank: the round that its host never enqueues, and the round that its device never
        completes.
    """

    world: int
    rounds: Sequence[Sequence[tuple[int, ...]]]
    host_stops: Mapping[int, int] = field(default_factory=dict)
    device_stops: Mapping[int, int] = field(default_factory=dict)
    ahead: int = 3
    begin_ns: int = BEGIN_NS

    def dumps(self) -> dict[int, dict[str, Any]]:
        """Return the dump of each rank's flight recorder once no rank makes progress."""
        done = self._run()
        names = {group: str(3 * n) for n, group in enumerate(self._groups())}
        return {rank: self._dump(rank, done[rank], names) for rank in range(self.world)}

    def _groups(self) -> list[tuple[int, ...]]:
        return list(dict.fromkeys(group for groups in self.rounds for group in groups))

    def _mine(self, rank: int) -> list[tuple[int, ...] | None]:
        return [next((one for one in groups if rank in one), None) for groups in self.rounds]

    def _run(self) -> dict[int, int]:
        """Return the number of rounds that each rank completes."""
        done = dict.fromkeys(range(self.world), 0)
        moved = True
        while moved:
            moved = False
            for rank in done:
                number = done[rank]
                if number == len(self.rounds) or self.device_stops.get(rank) == number:
                    continue
                group = next((one for one in self.rounds[number] if rank in one), (rank,))
                if all(
                    self._enqueued(one, done[one]) > number and done[one] >= number for one in group
                ):
                    done[rank] += 1
                    moved = True
        return done

    def _enqueued(self, rank: int, done: int) -> int:
        most = min(done + self.ahead, len(self.rounds))
        return min(most, self.host_stops.get(rank, most))

    def _dump(self, rank: int, done: int, names: Mapping[tuple[int, ...], str]) -> dict[str, Any]:
        mine = self._mine(rank)
        enqueued = self._enqueued(rank, done)
        count: Counter[tuple[int, ...]] = Counter()
        own = [group for group in names if rank in group]
        reached = {group: [0, 0] for group in own}
        entries = []
        for number, group in enumerate(mine[:enqueued]):
            if group is None:
                continue
            count[group] += 1
            reached[group][0] = count[group]
            if number < done:
                reached[group][1] = count[group]
                continue
            entries.append(
                {
                    "record_id": number,
                    "pg_id": own.index(group),
                    "process_group": (names[group], "GROUP"),
                    "collective_seq_id": count[group],
                    "p2p_seq_id": 0,
                    "profiling_name": NAMES[number % len(NAMES)],
                    "time_created_ns": self.begin_ns + number,
                    "input_sizes": [[8, 16]],
                    "state": "scheduled",
                    "retired": False,
                    "is_p2p": False,
                }
            )
        return {
            "version": "2.9",
            "pg_config": {
                names[group]: {"name": names[group], "desc": "GROUP", "ranks": str(list(group))}
                for group in own
            },
            "pg_status": {
                str(n): {
                    "last_enqueued_collective": reached[group][0],
                    "last_started_collective": -1,
                    "last_completed_collective": reached[group][1],
                }
                for n, group in enumerate(own)
            },
            "entries": entries,
        }


def ras(job: Hanging, *, silent: Sequence[int] = (), dead: Sequence[int] = ()) -> dict[str, Any]:
    """Return the output of NCCL's RAS; ranks that do not answer have no counts."""
    done = job._run()
    world = tuple(range(job.world))
    communicators = []
    for number, group in enumerate(dict.fromkeys([world, *job._groups()])):
        ranks, missing = [], []
        for index, rank in enumerate(group):
            process = {
                "rank": index,
                "host": f"10.0.0.{rank // 8}",
                "pid": 1000 + rank,
                "cuda_dev": 0,
                "nvml_dev": rank % 8,
            }
            if rank in silent or rank in dead:
                gone = {"unresponsive": rank in silent, "considered_dead": rank in dead}
                missing.append({**process, "status": gone})
                continue
            counts = dict.fromkeys(("AllReduce", "AllGather", "ReduceScatter", "SendRecv"), 0)
            counts["SendRecv"] = rank
            mine = job._mine(rank)[: job._enqueued(rank, done[rank])]
            for at, called in enumerate(mine):
                if called == group:
                    counts[("AllReduce", "AllGather", "ReduceScatter")[at % len(NAMES)]] += 1
            status = {"init_state": 0, "async_error": 0, "abort_flag": False}
            ranks.append({**process, "status": status, "collective_counts": counts})
        communicators.append(
            {
                "hash": f"0x{number:x}",
                "size": len(group),
                "ranks_count": len(ranks),
                "missing_ranks_count": len(missing),
                "ranks": ranks,
                "missing_ranks": missing,
            }
        )
    return {
        "nccl_version": "2.28.3",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-27 01:00:00",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.1, "timeouts_count": len(silent)},
    }


def thousand_dumps() -> Iterator[tuple[str, bytes]]:
    """Yield 1,024 dumps of a megabyte, by name; rank 341 never enters the last collective.

    The dumps differ in their bytes as those of separate processes do, but their rings are alike.
    """
    world = [tuple(range(THOUSAND))]
    job = Hanging(THOUSAND, [world] * 3, host_stops={THOUSAND_CULPRIT: 2})
    done = job.dumps()
    mark = "0" * (1 << 14)
    bodies = [
        pickled_by_torch(with_those_over(done[rank], 3_700) | {"version": mark})
        for rank in (0, THOUSAND_CULPRIT)
    ]
    for rank in range(THOUSAND):
        own = random.Random(rank).randbytes(len(mark) // 2).hex()  # noqa: S311 - filler
        body = bodies[rank == THOUSAND_CULPRIT].replace(mark.encode(), own.encode())
        yield f"_dump_{rank}", body


def ras_of_many(ranks: int, behind: Sequence[int]) -> dict[str, Any]:
    """Return RAS's output for many ranks, of which `behind` have not entered the last collective.

    Each rank is in a communicator of all ranks and in one of its host, in which the other ranks
    wait.
    """

    def counted(members: Sequence[int], name: str) -> dict[str, Any]:
        rows = [
            {
                "rank": index,
                "host": f"node-{rank // 8:04d}",
                "pid": 1000 + rank,
                "cuda_dev": rank % 8,
                "nvml_dev": rank % 8,
                "collective_counts": {"AllReduce": 41 if rank in behind else 42},
            }
            for index, rank in enumerate(members)
        ]
        return {
            "hash": name,
            "size": len(rows),
            "ranks_count": len(rows),
            "missing_ranks_count": 0,
            "ranks": rows,
            "missing_ranks": [],
        }

    hosts = [range(first, first + 8) for first in range(0, ranks, 8)]
    communicators = [counted(range(ranks), "0xworld")]
    communicators += [counted(host, f"0x{number:x}") for number, host in enumerate(hosts)]
    return {"nccl_version": "2.28.3", "communicators": communicators}


def pickled(dump: Mapping[str, Any]) -> bytes:
    """Return a dump as Python's pickler writes it."""
    return pickle.dumps(dump, protocol=2)


def pickled_by_torch(value: object) -> bytes:
    """Return values as PyTorch's pickler writes them: texts once, containers always anew."""
    texts: dict[str, int] = {}

    def written(one: object) -> bytes:
        if isinstance(one, bool) or one is None:
            return {True: b"\x88", False: b"\x89", None: b"N"}[one]
        if isinstance(one, str):
            return memorized(one)
        if isinstance(one, int | float):
            return pickle.dumps(one, protocol=2)[2:-1]
        if isinstance(one, tuple):
            return b"".join(map(written, one)) + {1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(one)]
        if isinstance(one, dict):
            return b"}(" + b"".join(written(part) for pair in one.items() for part in pair) + b"u"
        assert isinstance(one, list)
        return b"](" + b"".join(map(written, one)) + b"e"

    def memorized(text: str) -> bytes:
        known = texts.setdefault(text, len(texts))
        short = known < 1 << 8
        number = known.to_bytes(1 if short else 4, "little")
        if known < len(texts) - 1 or text in told:
            return (b"h" if short else b"j") + number
        told.add(text)
        encoded = text.encode()
        put = (b"q" if short else b"r") + number
        return b"X" + len(encoded).to_bytes(4, "little") + encoded + put

    told: set[str] = set()
    return b"\x80\x02" + written(value) + b"."


def with_those_over(dump: dict[str, Any], entries: int) -> dict[str, Any]:
    """Return a dump whose ring also contains `entries` completed operations with their stacks.

    PyTorch's default ring does so too: each of 3,300 operations takes a few hundred bytes, so the
    dump has a megabyte.
    """
    group = next(iter(dump["pg_config"]))
    over = []
    for number in range(entries):
        called_at = CALLED_AT[number % len(CALLED_AT)]
        begin_ns = BEGIN_NS + 1_000_000 * number
        over.append(
            {
                "frames": [
                    {"name": name, "filename": file, "line": line} for name, file, line in called_at
                ],
                "record_id": number,
                "pg_id": 0,
                "process_group": (group, "GROUP"),
                "collective_seq_id": number + 1,
                "p2p_seq_id": 0,
                "op_id": number + 1,
                "profiling_name": NAMES[number % len(NAMES)],
                "time_created_ns": begin_ns,
                "duration_ms": 0.125 * (number % 64),
                "input_sizes": [[8, 4096 + number % 4]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[8, 4096]],
                "output_dtypes": ["BFloat16"],
                "state": "completed",
                "time_discovered_started_ns": begin_ns + 10_000,
                "time_discovered_completed_ns": begin_ns + 900_000,
                "retired": True,
                "timeout_ms": 600_000,
                "is_p2p": False,
            }
        )
    return {**dump, "entries": over + dump["entries"]}


def as_json(dump: Mapping[str, Any]) -> bytes:
    """Return a dump as `_dump_nccl_trace_json` writes it."""
    return json.dumps(dump).encode()


def archived(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            # A fixed time, so that the same files give the same bytes.
            archive.writestr(zipfile.ZipInfo(name), body, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def large_archive() -> bytes:
    """Return an archive of four ranks that is so large that a worker reads it."""
    world = [(0, 1, 2, 3)]
    job = Hanging(4, [world, [(0, 1), (2, 3)], world], host_stops={2: 2})
    files = {f"_dump_{rank}": pickled(dump) for rank, dump in job.dumps().items()}
    return archived(files | {"README.md": b" " * (9 << 20)})


def stack_dump(*frames: tuple[str, str, int]) -> bytes:
    """Return py-spy's dump of a process with one thread, its innermost frame first."""
    return json.dumps(
        [
            {
                "pid": 7,
                "thread_id": 1,
                "thread_name": "MainThread",
                "os_thread_id": 7,
                "active": True,
                "owns_gil": True,
                "frames": [
                    {"name": name, "filename": file, "short_filename": None, "line": line}
                    for name, file, line in frames
                ],
            }
        ]
    ).encode()
