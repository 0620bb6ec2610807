"""The cost of reading a body is at most proportional to its size, whatever its values are.

Each field of an event gets values that are expensive for a dictionary, a converter of numbers or a
scanner. A reader whose cost grows with the square of the number of events takes sixteen times as
long for four times as many; one whose cost is proportional takes four times as long.
"""

from __future__ import annotations

import copy
import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import pytest

from app.analysis.hangs.document import hang_document
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.errors import PacelineError
from app.hangs.files import job_of, read_hang_file
from tests.fuzz.recordings import BODIES, META
from tests.support.equal_hashes import MODULUS
from tests.support.hanging import Hanging, ras
from tests.support.nightly import by_night

FEW: Final = 2000
MANY: Final = 4 * FEW
# Times of less are those of the interpreter.
LEAST_S: Final = 0.15
MOST_RATIO: Final = 8.0
LIMITS: Final = Limits(max_decompressed_bytes=256 << 20)

HOSTILE: Final[dict[str, Callable[[int], object]]] = {
    "integers of equal hashes": lambda number: number * MODULUS,
    "texts of integers of equal hashes": lambda number: str(number * MODULUS),
    "floats of equal hashes": lambda number: float(MODULUS + 1) * 2.0 ** (number % 900),
    "powers of two": lambda number: (number << 40) % (1 << 62),
    "texts": lambda number: f"name {number}",
    "long texts": lambda number: f"{number}" + "a(" * 50,
}
# Bodies that are one JSON document.
_JSON: Final = tuple(
    name for name, (_, body) in BODIES.items() if body[:1] in b"[{" and b"}\n{" not in body
)
_HANGS: Final = {
    "_dump_0.json": Hanging(4, [[(0, 1, 2, 3)], [(0, 1), (2, 3)]]).dumps()[0],
    "ras.json": ras(Hanging(8, [[tuple(range(8))]])),
}


def lists_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    """Yield the paths of the lists and mappings with members of the same kind."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    members = list(inner)
    if isinstance(value, list) and members and isinstance(value[0], dict):
        yield path
    for key, member in members:
        if isinstance(member, dict | list):
            yield from lists_in(member, (*path, key))


def fields_of(item: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the scalars of an item."""
    for key, member in item.items():
        if isinstance(member, dict):
            yield from fields_of(member, (*path, key))
        elif not isinstance(member, list):
            yield (*path, key)


def at(value: Any, path: tuple[Any, ...]) -> Any:  # noqa: ANN401 - JSON
    for key in path:
        value = value[key]
    return value


def grown(
    document: Any,  # noqa: ANN401 - JSON
    place: tuple[Any, ...],
    change: Callable[[Any, int], None],
    count: int,
) -> bytes:
    """Return a document whose list at `place` has `count` items, each of them changed."""
    document = copy.deepcopy(document)
    items = at(document, place)
    kinds = [copy.deepcopy(item) for item in items]
    items[:] = []
    for number in range(count):
        item = copy.deepcopy(kinds[number % len(kinds)])
        if isinstance(item, dict):
            change(item, number + 1)
        items.append(item)
    return json.dumps(document).encode()


def cost_s(read: Callable[[bytes], object], body: bytes) -> float:
    gc.collect()
    begun_s = time.process_time()
    with suppress(PacelineError):
        read(body)
    return time.process_time() - begun_s


def too_expensive(name: str, body: bytes, read: Callable[[bytes], object]) -> list[str]:
    """Return the fields and values for which the cost grows faster than the size."""
    document = json.loads(body)
    slow = []
    for place in lists_in(document):
        items = [item for item in at(document, place) if isinstance(item, dict)]
        fields = sorted({field for item in items for field in fields_of(item)})
        for field in fields:
            for kind, value in HOSTILE.items():

                def change(item: Any, number: int, field: Any = field, value: Any = value) -> None:  # noqa: ANN401 - JSON
                    with suppress(KeyError, TypeError):
                        at(item, field[:-1])[field[-1]] = value(number)

                many = grown(document, place, change, MANY)
                if (most_s := cost_s(read, many)) < LEAST_S:
                    continue
                few_s = cost_s(read, grown(document, place, change, FEW))
                if most_s > MOST_RATIO * few_s:
                    # Once more, as another process may have had the processor's caches.
                    most_s = min(most_s, cost_s(read, many))
                if most_s > MOST_RATIO * few_s:
                    where = ".".join(map(str, (*place, *field)))
                    slow.append(f"{name}: {where} with {kind}: {few_s:.2f} s, {most_s:.2f} s")
    return slow


@by_night
@pytest.mark.parametrize("name", sorted(_JSON))
def test_recordings(name: str) -> None:
    form, body = BODIES[name]

    def read(content: bytes) -> object:
        return decode(content, META, limits=LIMITS, format_name=form, part=True)

    assert not too_expensive(name, body, read)


@by_night
@pytest.mark.parametrize("name", sorted(_HANGS))
def test_files_of_hangs(name: str) -> None:
    def read(content: bytes) -> object:
        files = read_hang_file(name, content, 0)
        return job_of(files) if files else None

    assert not too_expensive(name, json.dumps(_HANGS[name]).encode(), read)


_LINES: Final = {
    "py-spy": "Process 7: a\nPython v3\nThread 7 (idle): {n}\n    f{n} (a.py:{n})\n",
    "ras": "#{n}-0 (ab) MISMATCH\n  Communicator ranks have different A{n} operation counts\n"
    "  2 ranks have launched up to operation {n}\n  Rank {n} -- GPU 0 managed by process 1 on n\n",
    "ras of one": "#0-0 (ab) MISMATCH\n  Communicator ranks have different A{n} operation counts\n"
    "  {n} ranks have launched up to operation {n}\n",
    "log": "[rank{n}]: [PG 1 (A{n}) Rank 0] last enqueued work: 9, last completed work: 8\n"
    "[Rank {n}] WorkNCCL(SeqNum=9, OpType=A{n}\n",
    "line": "[rank{n}]: [PG ID {n} PG GUID Rank 0] Rank 7] WorkNCCL(SeqNum= Process {n}: ",
}


@by_night
@pytest.mark.parametrize("name", sorted(_LINES))
def test_texts_of_hangs(name: str) -> None:
    def cost_of(count: int) -> float:
        body = "".join(_LINES[name].format(n=number) for number in range(count)).encode()
        gc.collect()
        begun_s = time.process_time()
        with suppress(PacelineError):
            job_of(read_hang_file("text_0", body))
        return time.process_time() - begun_s

    few_s, many_s = cost_of(5 * FEW), cost_of(5 * MANY)
    assert many_s < MOST_RATIO * max(few_s, LEAST_S / MOST_RATIO)


@by_night
def test_the_verdict_on_a_group_of_many_ranks() -> None:
    """A recorder's file of some kilobytes names as many ranks as it likes."""

    def cost_of(ranks: int) -> float:
        dump = Hanging(2, [[(0, 1)]]).dumps()[0]
        for group in dump["pg_config"].values():
            group["ranks"] = json.dumps(list(range(ranks)))
        files = read_hang_file("_dump_0", json.dumps(dump).encode(), 0)
        gc.collect()
        begun_s = time.process_time()
        document = hang_document(job_of(files))
        assert len(document.ranks) == ranks
        return time.process_time() - begun_s

    few_s, many_s = cost_of(10_000), cost_of(40_000)
    assert many_s < MOST_RATIO * max(few_s, LEAST_S / MOST_RATIO)
