"""Integers with equal hashes, and bodies that hold them as keys of dictionaries.

Python hashes an integer modulo 2^61 - 1. A dictionary of n keys with equal hashes takes n² steps to
build: 415 kB of pickle held the interpreter for five seconds.
"""

from __future__ import annotations

import json
import pickle
from typing import Any, Final

MODULUS: Final = (1 << 61) - 1
MANY: Final = 30_000


def equal_hashes(count: int = MANY) -> list[int]:
    """Return integers with the same hash; all but the first four are beyond 64 bits."""
    return [number * MODULUS for number in range(1, count + 1)]


def pickled_keys(protocol: int, count: int = MANY) -> bytes:
    """Return the pickle of a dictionary whose keys have equal hashes."""
    return pickle.dumps(dict.fromkeys(equal_hashes(count)), protocol)


def pickled_memo(count: int = MANY) -> bytes:
    """Return a pickle that puts values into the memo under numbers with equal hashes."""
    return b"\x80\x02N" + b"".join(b"p%d\n" % number for number in equal_hashes(count)) + b"."


def flight_recorder(count: int = MANY, **fields: Any) -> bytes:  # noqa: ANN401 - of JSON
    """Return a JSON dump with the fields, by default a `pg_status` with keys of equal hashes."""
    status: dict[str, dict[str, int]] = {str(number): {} for number in equal_hashes(count)}
    groups = {"0": {"desc": "default_pg", "ranks": [0, 1]}}
    return json.dumps({"pg_config": groups, **(fields or {"pg_status": status})}).encode()


def kineto(keys: tuple[str, ...], count: int = MANY) -> bytes:
    """Return a Kineto file of runtime calls with equal hashes under the keys of an event."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1}
    args = {"correlation": 7}
    events = [
        call | {"pid": 1, "tid": 1} | dict.fromkeys(keys, number) | {"args": args}
        for number in equal_hashes(count)
    ]
    return json.dumps({"traceEvents": events}).encode()
