"""Each rank sends its share of a session with the client; the server merges them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline_client import Recorder, Share
from tests import factories
from tests.integration.api import bodies
from tests.integration.api.chunks import report

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


def test_the_shares_of_all_ranks_are_the_session(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    trace = bodies.trace()
    posted = installation.post().json()["session"]
    recorders = []
    for rank in np.unique(trace.rank).tolist():
        part = factories.select(trace, trace.rank == rank)
        share = Share(session=2, producer=f"rank-{rank}")
        recorder = Recorder(installation.url, "job", bodies.SIZES, share=share)
        columns = (part.rank, part.op, part.start_ns, part.duration_ns)
        places = (part.step, part.dp, part.pp, part.mb, part.mc)
        for values, (step, dp, pp, mb, mc) in zip(
            zip(*columns, strict=True), zip(*places, strict=True), strict=True
        ):
            number, op, start, duration = values
            name = part.op_names[op]
            recorder.op(number, name, start, duration, step=step, dp=dp, pp=pp, mb=mb, mc=mc)
        recorder.finish()
        recorders.append(recorder)
    outcomes = [recorder.wait(60) for recorder in recorders]
    assert [outcome.error for outcome in outcomes if outcome is not None] == [None] * 6
    installation.analyze_all()
    (sent,) = {outcome.delivery.session for outcome in outcomes if outcome and outcome.delivery}
    found, coverage = report(installation, sent)
    assert found == report(installation, posted)[0]
    assert coverage["sealed_by"] == "final"
