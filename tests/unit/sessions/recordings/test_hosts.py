"""A run of XProf: one file for each host, which counts its devices from 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.analysis.report.build import analyze
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import SessionMeta, Sizes
from app.cli.convert import read_recordings
from tests.unit.analysis.trace.recordings.xplane_files import tpu_hosts

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def written(folder: Path, *, hosts: int = 11) -> Path:
    for number, host in enumerate(tpu_hosts(hosts=hosts, devices=2, slow=21)):
        host.name = ""
        (folder / f"w-{number}.xplane.pb").write_bytes(host.body())
        (folder / f"w-{number}.trace.json.gz").write_bytes(host.trace_json())
    return folder


def test_devices_of_all_hosts_are_ranks_in_the_order_of_the_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = read_recordings([written(tmp_path)], None, None).trace

    assert trace.meta.sizes == Sizes(dp=22, pp=1)
    assert [trace.meta.hosts[rank] for rank in (0, 1, 4, 5, 20, 21)] == [
        "w-0", "w-0", "w-2", "w-2", "w-10", "w-10",
    ]  # fmt: skip
    assert trace.dp.tolist() == trace.rank.tolist()
    arrivals = analyze(trace).report.arrivals
    assert arrivals is not None
    assert (arrivals.worst.rank, arrivals.straggles) == (21, True)
    # The clock of each host is 200 ms ahead of the previous host's.
    assert arrivals.clocks_apart_s > 1.9
    # The traces for a viewer contain the same events again.
    said = capsys.readouterr().err
    assert "w-10.trace.json.gz: it is a shortened copy of w-10.xplane.pb" in said


def test_the_files_for_a_viewer_are_read_where_there_are_no_others(tmp_path: Path) -> None:
    for file in written(tmp_path, hosts=2).glob("*.pb"):
        file.unlink()
    assert read_recordings([tmp_path], None, None).trace.meta.sizes == Sizes(dp=4, pp=1)


def test_sizes_that_are_given_are_those_of_all_hosts(tmp_path: Path) -> None:
    meta = SessionMeta(Sizes(dp=2, pp=1, tp=2))
    folder = written(tmp_path, hosts=2)
    text = "\n".join(f"{key}: {value}" for key, value in metadata_document(meta).items())
    (folder / "meta.yaml").write_text(text)
    trace = read_recordings([folder], None, None).trace
    assert trace.meta.sizes == meta.sizes
    assert sorted(set(zip(trace.rank.tolist(), trace.dp.tolist(), strict=True))) == [
        (0, 0), (1, 0), (2, 1), (3, 1),
    ]  # fmt: skip
