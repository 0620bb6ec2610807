"""Jobs that stand still, executed by a small machine that shares nothing with the product.

Each rank's program calls collectives of its groups in the same global order; its host enqueues a
few ahead, and one is over on a rank when all of its ranks have enqueued it and are through with
what they enqueued before. A rank's host may stop before one, or its device in one.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NAMES = ("nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base")
BEGIN_NS = 1_700_000_000_000_000_000


@dataclass
class Hanging:
    """A job of ranks that call collectives in turn.

    Parameters
    ----------
    rounds : sequence of sequence of ranks
        Which groups call a collective, one after the other; ranks in several groups of a round do
        not occur.
    host_stops, device_stops : mapping of int to int
        By rank: the round that it never enqueues, and the one that it never completes.
    """

    world: int
    rounds: Sequence[Sequence[tuple[int, ...]]]
    host_stops: Mapping[int, int] = field(default_factory=dict)
    device_stops: Mapping[int, int] = field(default_factory=dict)
    ahead: int = 3
    begin_ns: int = BEGIN_NS

    def dumps(self) -> dict[int, dict[str, Any]]:
        """Return what the flight recorder of each rank writes down once nothing moves."""
        done = self._run()
        names = {group: str(3 * n) for n, group in enumerate(self._groups())}
        return {rank: self._dump(rank, done[rank], names) for rank in range(self.world)}

    def _groups(self) -> list[tuple[int, ...]]:
        return list(dict.fromkeys(group for groups in self.rounds for group in groups))

    def _mine(self, rank: int) -> list[tuple[int, ...] | None]:
        return [next((one for one in groups if rank in one), None) for groups in self.rounds]

    def _run(self) -> dict[int, int]:
        """Return how many rounds each rank completes."""
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
    """Return what NCCL's RAS prints of a job; of ranks that do not answer nothing is counted."""
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


def pickled(dump: Mapping[str, Any]) -> bytes:
    """Return a dump as PyTorch's pickler writes it."""
    return pickle.dumps(dump, protocol=2)


def as_json(dump: Mapping[str, Any]) -> bytes:
    """Return a dump as `_dump_nccl_trace_json` writes it."""
    return json.dumps(dump).encode()


def archived(files: Mapping[str, bytes]) -> bytes:
    """Return a zip of files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            # of one moment: the same files are the same bytes
            archive.writestr(zipfile.ZipInfo(name), body, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def large_archive() -> bytes:
    """Return an archive of four ranks that is read by a worker: its files are large."""
    world = [(0, 1, 2, 3)]
    job = Hanging(4, [world, [(0, 1), (2, 3)], world], host_stops={2: 2})
    files = {f"_dump_{rank}": pickled(dump) for rank, dump in job.dumps().items()}
    return archived(files | {"README.md": b" " * (9 << 20)})


def stack_dump(*frames: tuple[str, str, int]) -> bytes:
    """Return what py-spy prints of a process with one thread, its innermost frame first."""
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
