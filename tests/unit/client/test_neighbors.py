"""Compatibility of server and client of neighboring versions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import ABSENT
from paceline_client import VERSION, Recorder, RetryPolicy, Run, Share
from tests.unit.client.conftest import Answer

if TYPE_CHECKING:
    from tests.unit.client.conftest import Receiver

# Bodies of released clients: one file for each version, written by that version.
RECORDED = sorted((Path(__file__).parent / "recorded").glob("share-*.ndjson.gz"))
START_NS = 1_760_000_000_123_456_789


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_the_server_reads_what_an_earlier_client_sent(path: Path) -> None:
    trace = decode(path, None, limits=Limits(), content_type="application/x-ndjson").trace
    rows = list(
        zip(
            trace.step.tolist(),
            [trace.op_names[code] for code in trace.op.tolist()],
            trace.mb.tolist(),
            trace.start_ns.tolist(),
            strict=True,
        )
    )
    expected = []
    for step in (7, 8):
        for mb in range(3):
            expected += [(step, "forward-compute", mb), (step, "backward-compute", mb)]
        expected.append((step, "optimizer", ABSENT))
    assert rows == [(*row, START_NS + 1001 * index) for index, row in enumerate(expected)]
    assert trace.meta.hosts == {1: "node-017"}


def test_the_client_makes_do_with_a_server_of_before_attempts(receiver: Receiver) -> None:
    receiver.answers = [Answer(status=404, document={"code": "not_found"})]
    share = Share(session=3, producer="rank-0", attempt=Run("812", 2))
    meta = {"dp": 1, "pp": 1, "world": 1}
    recorder = Recorder(receiver.url, "llama", meta, share=share, retry=RetryPolicy(0))
    recorder.op(0, "optimizer", START_NS, 5, step=2, dp=0, pp=0)
    recorder.finish()
    outcome = recorder.wait(30)

    assert outcome is not None
    assert outcome.error is None
    assert json.loads(receiver.requests[0].body) == {"run_id": "812", "restart": 2}
    assert receiver.requests[1].path.startswith("/api/v1/jobs/llama/attempts/3/sessions/3/")


def test_the_version_before_this_one_has_its_recorded_body() -> None:
    changes = (Path(__file__).parents[3] / "client" / "CHANGELOG.md").read_text()
    released = [line.partition("[")[2].partition("]")[0] for line in changes.splitlines()
                if re.match(r"## \[\d", line)]  # fmt: skip
    assert released[0] == VERSION
    assert {path.name for path in RECORDED} == {f"share-{v}.ndjson.gz" for v in released[1:]}
