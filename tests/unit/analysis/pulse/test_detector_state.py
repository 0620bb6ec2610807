"""A detector's state is stored as bytes, and restored unchanged."""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest

from app.analysis.pulse.detector import Detector
from app.analysis.pulse.detector_state import from_bytes, to_bytes
from app.analysis.pulse.heartbeats import LastSeen
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.errors import UnknownDocumentError


def advanced() -> Detector:
    detector = Detector(hosts={rank: f"node-{rank // 8}" for rank in range(16)})
    job = PulseJob.healthy(PulseDials(dp=8, pp=2, steps=80), stream(5, "kept"))
    job.computing[40:, 3] *= 1.5
    detector.advance(job.rows())
    detector.heartbeats.last_seen = {
        rank: LastSeen(1 << 60, 80, "forward", rank) for rank in range(16)
    }
    detector.assembler.counts["pulse.late"] = 3
    return detector


def test_it_comes_back_the_same() -> None:
    detector = advanced()
    body = to_bytes(detector)
    back = from_bytes(body)
    assert to_bytes(back) == body
    assert (back.hosts, back.heartbeats.last_seen) == (
        detector.hosts,
        detector.heartbeats.last_seen,
    )
    assert back.counts == detector.counts
    assert back.ledger == detector.ledger
    assert back.ledger.open


def test_a_number_over_64_bits_is_kept_exactly() -> None:
    detector = advanced()
    detector.heartbeats.last_seen[3] = replace(detector.heartbeats.last_seen[3], step=1 << 70)
    assert from_bytes(to_bytes(detector)).heartbeats.last_seen == detector.heartbeats.last_seen


def test_an_unreadable_state_raises_an_error_that_says_so() -> None:
    body = to_bytes(advanced())
    for damaged in (b"", b"rubbish", body[:-40], body[:100] + bytes(40) + body[140:]):
        with pytest.raises(UnknownDocumentError):
            from_bytes(damaged)
    other = io.BytesIO()
    text = json.dumps({"version": 99, "state": {}}).encode()
    np.savez(other, state=np.frombuffer(text, np.uint8))
    with pytest.raises(UnknownDocumentError, match="version 99"):
        from_bytes(zlib.compress(other.getvalue()))
