"""The table of docs/converting.md is true: each row is tested with its files."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from app.cli.convert import read_recordings
from app.errors import PacelineError
from tests.support.trainings.files import write_training
from tests.support.trainings.job import Kind, Style, Training
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.formats.test_registry import UNREAD
from tests.unit.analysis.trace.recordings import test_kineto_processes as test_processes
from tests.unit.analysis.trace.recordings.kineto_files import KinetoFile, two_stages
from tests.unit.analysis.trace.recordings.profiler.test_contents import inference
from tests.unit.analysis.trace.recordings.test_kineto_groups import ungrouped

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGE = Path(__file__).parents[3] / "docs" / "converting.md"
_ROW = re.compile(r"\| (.+?) \| (.+?) \|")
_CODE = re.compile(r"`([a-z]+\.[a-z_0-9]+)`")


def rows() -> dict[str, str]:
    """Return the result for each file, by the table's name of the file."""
    table = _PAGE.read_text().split("## Your file\n\n", 1)[1].split("\n\n", 1)[0]
    found = (_ROW.match(line) for line in table.splitlines()[2:])
    return {match[1]: match[2] for match in found if match is not None}


def write(folder: Path, *files: KinetoFile) -> None:
    for file in files:
        (folder / f"rank{file.rank}.json").write_bytes(file.body())


def body(content: bytes, name: str = "rank0.json") -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return made


def data_parallel(folder: Path) -> None:
    write_training(Training(Kind.DDP, ranks=2, layers=2, steps=2), Style(), folder)


def recoded(folder: Path) -> None:
    text, other = (two_stages(rank).body() for rank in range(2))
    (folder / "rank0.json").write_bytes(text.decode().encode("utf-16"))
    (folder / "rank1.json.gz").write_bytes(gzip.compress(gzip.compress(other)))


def arrays(folder: Path) -> None:
    for rank in range(4):
        file = ungrouped(rank, 4, [rank // 2], {"mesh_pp": 2, "mesh_dp": 2})
        events = json.loads(file.body())["traceEvents"]
        (folder / f"rank{rank}.json").write_text(json.dumps(events))


def of_pandas(kind: pa.DataType) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        table = bodies.native_table()
        at = table.schema.get_field_index("start_ns")
        start = [
            1_760_000_000_000_000_001 + (value or 0) for value in table["start_ns"].to_pylist()
        ]
        values = pa.array(start, pa.int64()).cast(kind, safe=False)
        written = io.BytesIO()
        pq.write_table(table.set_column(at, "start_ns", values), written)
        (folder / "trace.parquet").write_bytes(written.getvalue())
        meta = {"dp": 2, "pp": 2, "tp": 2}
        (folder / "meta.yaml").write_text(yaml.safe_dump(meta))

    return made


FILES: dict[str, Callable[[Path], None]] = {
    "PyTorch's profiler, DDP, FSDP or HSDP, a file a rank": data_parallel,
    "PyTorch's profiler, a pipeline that labels its actions, a file a rank": lambda folder: write(
        folder, two_stages(0), two_stages(1)
    ),
    "PyTorch's profiler, some ranks of a job": lambda folder: write(folder, two_stages(0)),
    "PyTorch's profiler, an array of events a rank": arrays,
    "PyTorch's profiler, the processes of all ranks in one file": body(
        test_processes.merged(*test_processes.WAYS["[Rank 1] 7"])
    ),
    "the same, and no process says its rank": body(
        test_processes.merged(test_processes.moved, []), "all.json"
    ),
    "PyTorch's profiler, no process groups listed": lambda folder: write(
        folder, *(ungrouped(rank, 2, [rank], {"mesh_pp": 2}) for rank in range(2))
    ),
    "the same, and collectives name no groups": lambda folder: write(
        folder, *(ungrouped(rank, 4, [rank // 2], {}) for rank in range(4))
    ),
    "PyTorch's profiler, inference or a part of a step": lambda folder: write(folder, inference()),
    "an operation type a row, as pandas writes Parquet": of_pandas(pa.timestamp("ns")),
    "the same, with absolute times in floating point": of_pandas(pa.float64()),
    "a dump of PyTorch's flight recorder": body(UNREAD["flight recorder"]),
    "an execution trace of PyTorch (Chakra)": body(UNREAD["Chakra"]),
    "a trace of `torch.autograd.profiler` without Kineto": body(UNREAD["autograd profiler"]),
    "a trace of rocprof": body(UNREAD["rocprof"]),
    "a timeline of Ascend's profiler (torch_npu)": body(UNREAD["Ascend"]),
    "Jaeger's JSON": body(UNREAD["Jaeger"]),
    "any text in UTF-16 with its mark, or compressed twice": recoded,
}


def test_every_row_has_its_files() -> None:
    assert list(rows()) == list(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_row_says_what_its_files_give(name: str, tmp_path: Path) -> None:
    FILES[name](tmp_path)
    recordings = [path for path in sorted(tmp_path.iterdir()) if path.suffix != ".yaml"]
    meta = tmp_path / "meta.yaml"
    said = _CODE.findall(rows()[name])
    if not said:
        trace = read_recordings(recordings, meta if meta.is_file() else None, None).trace
        assert len(trace) > 0
        return
    with pytest.raises(PacelineError) as caught:
        read_recordings(recordings, meta if meta.is_file() else None, None)
    assert [caught.value.stable_code] == said
