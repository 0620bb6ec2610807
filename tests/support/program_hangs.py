"""Dumps of flight recorders of jobs whose own program makes them hang.

All ranks complete the same collectives of one group; then each calls its own last operations, or
none. The product of what they pass is up to the test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.analysis.hangs.state import JobState
from app.hangs.flight_recorder import FlightRecorder, read_dump
from tests.support.hanging import BEGIN_NS, as_json

STEP_NS = 50_000_000
TIMEOUT_MS = 600_000
LINE = {"name": "train", "filename": "/app/loop.py", "line": 31}
SAVING = {"name": "save", "filename": "/app/checkpoint.py", "line": 77}
IN_TORCH = {
    "name": "all_reduce",
    "filename": "/opt/lib/torch/distributed/distributed_c10d.py",
    "line": 2810,
}


def called(name: str = "nccl:all_reduce", **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the fields of an operation, with those of an all-reduce of 4096 floats by default."""
    return {
        "profiling_name": name,
        "input_sizes": [[4096]],
        "output_sizes": [[4096]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "started",
        "retired": False,
        "is_p2p": False,
        "p2p_seq_id": 0,
        "frames": [IN_TORCH, LINE],
    } | fields


def completed(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the fields of an operation that is over."""
    return called(state="completed", retired=True, **fields)


def ring_batch(rank: int, world: int, number: int, *, is_over: bool) -> list[dict[str, Any]]:
    """Return what a recorder keeps of a batch that sends to the next rank of a ring.

    The state of the transfers themselves never changes.
    """
    shared: dict[str, Any] = {"is_p2p": True, "p2p_seq_id": number, "collective_seq_id": 0}
    names = f"nccl:send {rank}->{(rank + 1) % world}", f"nccl:recv {rank}<-{(rank - 1) % world}"
    whole = completed if is_over else called
    return [
        *(called(name, state="scheduled", **shared) for name in names),
        whole(**shared) | {"profiling_name": "nccl:coalesced"},
    ]


def dump_of(
    world: int, last: Sequence[Mapping[str, Any]], *, history: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the dump of one rank: `history` and then `last`, in the group of all ranks.

    Collectives are numbered in their order, unless they have a number.
    """
    entries, number = [], 0
    for place, fields in enumerate((*history, *last)):
        is_own = "collective_seq_id" not in fields
        number += is_own
        begin_ns = BEGIN_NS + place * STEP_NS
        is_over = fields["state"] == "completed"
        entries.append(
            {
                "record_id": place,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number,
                "time_created_ns": begin_ns,
                "time_discovered_completed_ns": begin_ns + 3_000_000 if is_over else None,
                "timeout_ms": TIMEOUT_MS,
                **fields,
            }
        )
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": number,
                "last_started_collective": -1,
                "last_completed_collective": sum(not each["is_p2p"] for each in history),
            }
        },
        "entries": entries,
    }


def program_dumps(
    last: Sequence[Sequence[Mapping[str, Any]]], steps: int = 5, batches: int = 0
) -> list[dict[str, Any]]:
    """Return the dumps of all ranks, each with its own last operations."""
    world = len(last)
    dumps = []
    for rank, own in enumerate(last):
        history = [completed() for _ in range(steps)]
        for number in range(1, batches + 1):
            history += ring_batch(rank, world, number, is_over=True)
        dumps.append(dump_of(world, own, history=history))
    return dumps


def state_of(dumps: Sequence[Mapping[str, Any]], without: Sequence[int] = ()) -> JobState:
    """Return the state of the job that left these dumps, by rank."""
    recorder = FlightRecorder()
    for rank, dump in enumerate(dumps):
        if rank not in without:
            recorder.add(rank, read_dump(as_json(dump)))
    return recorder.job()


def communicator(
    counts: Sequence[Mapping[str, int] | None], name: str = "0x1", ranks: Sequence[int] = ()
) -> dict[str, Any]:
    """Return a communicator of RAS: the launched operations of each rank; None if it is silent.

    Parameters
    ----------
    ranks : sequence of int
        Global ranks of the members; by default those from 0 on.
    """
    answering, missing = [], []
    for place, launched in enumerate(counts):
        rank = ranks[place] if ranks else place
        process = {
            "rank": place,
            "host": f"node-{rank // 8}",
            "pid": 5000 + rank,
            "cuda_dev": rank % 8,
            "nvml_dev": rank % 8,
        }
        if launched is None:
            missing.append({**process, "status": {"unresponsive": True}})
        else:
            answering.append({**process, "collective_counts": {"Broadcast": 0, **launched}})
    return {
        "hash": name,
        "size": len(counts),
        "ranks_count": len(answering),
        "missing_ranks_count": len(missing),
        "ranks": answering,
        "missing_ranks": missing,
    }


def ras_of(*communicators: Mapping[str, Any]) -> bytes:
    """Return what `ncclras -f json` prints about these communicators."""
    return as_json({"nccl_version": "2.28.3", "communicators": list(communicators)})
