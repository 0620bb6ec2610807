"""`paceline pulse detect`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.analysis.pulse.parquet import columns_of
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.analysis.synthesis.random_pulses import slow_rank
from app.cli.hang import detect_file


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Path, int]:
    rng = stream(1, "command")
    job = PulseJob.healthy(PulseDials(dp=8, steps=400), rng)
    job.data[60::40] += 5e8
    truth = slow_rank(job, rng, 150, 1.3)
    file, meta = tmp_path / "pulse.parquet", tmp_path / "meta.json"
    pq.write_table(pa.table(columns_of(job.rows())), file)
    hosts = {rank: f"node-{rank // 4}" for rank in range(8)}
    meta.write_text(json.dumps({"dp": 8, "pp": 1, "hosts": hosts}))
    return file, meta, truth.ranks[0]


def test_json_has_the_notices_and_the_stalls(
    recorded: tuple[Path, Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    file, meta, rank = recorded
    detect_file(file, meta, as_json=True)
    document = json.loads(capsys.readouterr().out)
    (notice,), stalls = document["notices"], document["stalls"]

    assert document.keys() == {"notices", "stalls"}
    assert notice.keys() >= {
        *("kind", "ranks", "hosts", "factor", "from_step", "noticed_step", "noticed_time_ns"),
        *("cleared_step", "evidence"),
    }
    assert (notice["kind"], notice["ranks"]) == ("slow_rank", [rank])
    assert notice["hosts"] == [f"node-{rank // 4}"]
    assert stalls[0]["cause"] == "data"


def test_people_get_sentences(
    recorded: tuple[Path, Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    file, _, rank = recorded
    detect_file(file, None, as_json=False)
    out = capsys.readouterr().out

    assert out.startswith(f"slow rank: Rank {rank}: computing takes 1.3")
    assert "from step 150, noticed at step 15" in out
    assert "data on all ranks: 9 steps, every 40 steps" in out
