"""Damaged files of a session cost themselves: the other ranks are read."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.limits import Limits
from app.errors import InvalidTraceError
from app.sessions.recordings.choose import NamedFile, NotRead
from app.sessions.recordings.read import Reading, Recorded, files_of, left_out, read_files
from tests.support.trainings.files import write_training
from tests.support.trainings.job import Kind, Style, Training
from tests.unit.analysis.trace.recordings.xplane_files import tpu_hosts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMITS = Limits(max_decompressed_bytes=64 << 20, max_rows=100_000)
RANKS = 4


def without_backward(packed: bytes) -> bytes:
    """Return the file of a profiler that was stopped within the first forward."""
    document = json.loads(gzip.decompress(packed))
    events = document["traceEvents"]
    backwards = [e["ts"] for e in events if "evaluate_function" in str(e.get("name"))]
    first = min(backwards)
    document["traceEvents"] = [event for event in events if event.get("ts", 0) < first]
    return json.dumps(document).encode()


def half(text: bytes) -> bytes:
    return text[: len(text) // 2]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda packed: gzip.compress(half(gzip.decompress(packed))),
    "cut off, compressed": half,
    "another text from the middle on": lambda packed: gzip.compress(
        half(gzip.decompress(packed)) + b"\x00" * 2_000_000
    ),
    "stopped in a forward": lambda packed: gzip.compress(without_backward(packed)),
    "damaged compression": lambda packed: packed[:-400] + bytes(400),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_training(Training(Kind.DDP, layers=3, kernels=2, steps=3, ranks=RANKS), Style(), tmp_path)
    return tmp_path


def test_the_reason_of_a_file_left_out_keeps_its_spaces() -> None:
    [entry] = left_out([NotRead("rank1.json", "the device is busy 98\N{NO-BREAK SPACE}%\x07")])
    assert entry.what.endswith("busy 98\N{NO-BREAK SPACE}%?")


def read(folder: Path) -> Recorded:
    return read_files(files_of(folder)[0], None, Reading(LIMITS, local=True))


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_four_files_one_that_is_damaged_costs_itself(folder: Path, damage: str) -> None:
    wanted = read(folder).trace
    path = sorted(folder.iterdir())[2]
    path.write_bytes(DAMAGES[damage](path.read_bytes()))

    recorded = read(folder)
    assert recorded.trace.meta.sizes == wanted.meta.sizes
    assert sorted(set(recorded.trace.rank.tolist())) == [0, 1, 3]
    kept = wanted.rank != 2
    assert recorded.trace.start_ns.tolist() == wanted.start_ns[kept].tolist()
    (lost,) = [one.what for one in recorded.unmapped if "not read" in one.what]
    assert lost.startswith(f"file that is not read, {path.name}: ")


def test_where_all_files_are_damaged_the_first_is_refused(folder: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(half(path.read_bytes()))
    with pytest.raises(InvalidTraceError) as caught:
        read(folder)
    assert caught.value.stable_code == "trace.truncated"
    assert caught.value.message.startswith(min(path.name for path in folder.iterdir()))


def test_a_file_alone_is_refused(folder: Path) -> None:
    first, *others = sorted(folder.iterdir())
    for path in others:
        path.unlink()
    first.write_bytes(half(first.read_bytes()))
    with pytest.raises(InvalidTraceError, match="ends before its end mark"):
        read(folder)


def test_hosts_are_not_counted_without_a_damaged_one(tmp_path: Path) -> None:
    files = []
    for number, host in enumerate(tpu_hosts(hosts=2, devices=2, steps=2)):
        path = tmp_path / f"host{number}.xplane.pb"
        path.write_bytes(half(host.body()) if number == 0 else host.body())
        files.append(NamedFile(path.name, path))
    with pytest.raises(InvalidTraceError, match=r"^host0"):
        read_files(files, None, Reading(LIMITS, local=True))
