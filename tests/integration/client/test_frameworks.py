"""The pulse of each framework: the rows that the examples send, run as by users."""

from __future__ import annotations

import importlib.util
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest

from app.analysis.pulse.columns import NO_BEAT, joined
from app.pulse.body import read_pulse
from tests.conftest import skip_or_fail
from tests.integration.client.conftest import environment
from tests.integration.client.test_examples import EXAMPLES, LIMIT_S, NEEDS, PACE
from tests.real_jobs.launching import torch_python
from tests.support.nightly import by_night
from tests.unit.client.conftest import Answer, Receiver, receiver

if TYPE_CHECKING:
    from pathlib import Path

    from app.analysis.pulse.columns import Pulses

__all__ = ["receiver"]

RANKS: Final = 4
STEPS: Final = 6
# All steps of an example: those before its session, and the session.
ALL_STEPS: Final = 10 + STEPS
LOST: Final = 3
SLOW: Final = 1
FACTOR: Final = 1.8


@dataclass(frozen=True)
class Kind:
    """An example, the places of its ranks as (DP rank, stage), and whether it has a loader.

    `tokens` is the number of a replica's tokens in a step, for frameworks that provide it.
    """

    script: str
    places: tuple[tuple[int, int], ...]
    loads: bool = False
    tokens: int = 0


REPLICAS: Final = tuple((rank, 0) for rank in range(RANKS))
STAGES: Final = ((0, 0), (1, 0), (0, 1), (1, 1))
KINDS: Final = (
    Kind("hand_written", STAGES),
    Kind("lightning_ddp", REPLICAS, loads=True),
    Kind("accelerate_ddp", REPLICAS),
    # 32 tokens: eight microbatches of one sequence of four tokens.
    Kind("megatron_core", STAGES, tokens=32),
)


def rows_of(receiver: Receiver) -> Pulses:
    """Return the received rows, without beats."""
    parts = []
    for request in receiver.pulses:
        sent = read_pulse(request.body, 1)
        assert not sent.counts
        parts.append(sent.rows)
    rows = joined(parts)
    return rows.take(rows.phase == NO_BEAT)


@by_night
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.script)
def test_rows_say_what_each_rank_of_a_framework_did_itself(
    receiver: Receiver, tmp_path: Path, kind: Kind
) -> None:
    for package in ("torch", NEEDS.get(kind.script, "torch")):
        if importlib.util.find_spec(package) is None:
            skip_or_fail(f"{package} is not installed")
    receiver.numbered = Answer(status=201, document={"attempt": 1})
    ran = subprocess.run(  # noqa: S603 - our own script
        [
            *(torch_python(), str(EXAMPLES / f"{kind.script}.py")),
            *("--slow", f"{SLOW}:{FACTOR}", "--steps", str(STEPS), *PACE),
        ],
        env=environment()
        | {
            "PACELINE_SERVER": receiver.url,
            "PACELINE_PULSE_S": "0.5",
            "PACELINE_SPOOL": str(tmp_path / "spool"),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rows = rows_of(receiver)
    of_rank = [rows.take(rows.rank == rank) for rank in range(RANKS)]
    for own, place in zip(of_rank, kind.places, strict=True):
        steps = sorted(own.step.tolist())
        # Processes of multiprocessing skip exit handlers, so the last rows are not sent.
        assert steps == list(range(len(steps)))
        assert len(steps) >= ALL_STEPS - LOST
        assert set(own.tokens.tolist()) == {kind.tokens}
        assert {(int(dp), int(pp)) for dp, pp in zip(own.dp_rank, own.pp_rank, strict=True)} == {
            place
        }
    usual = {
        name: [float(np.median(getattr(own, name))) for own in of_rank]
        for name in ("step_ns", "compute_ns", "wait_ns", "data_ns", "optimizer_ns")
    }
    # Steps are equally long on all ranks, but only the slow rank computes longer.
    computing = usual["compute_ns"]
    peers = [rank for rank in range(RANKS) if rank != SLOW]
    of_peers = [computing[rank] for rank in peers]
    assert computing[SLOW] == pytest.approx(FACTOR * float(np.median(of_peers)), rel=0.2)
    assert computing[SLOW] > 1.4 * max(of_peers)
    assert max(usual["step_ns"]) < 1.1 * min(usual["step_ns"])
    slower_ns = computing[SLOW] - max(of_peers)
    of_peers = [usual["wait_ns"][rank] for rank in peers]
    assert min(of_peers) - usual["wait_ns"][SLOW] > 0.5 * slower_ns
    assert min(usual["optimizer_ns"]) > 0
    assert min(usual["data_ns"]) > 0 or not kind.loads
