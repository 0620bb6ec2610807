"""Ranks that share experts or sequences: the recorded collectives and the report."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import skip_or_fail
from tests.integration.client.conftest import NOWHERE, Train

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation

# The values of sharing.py, which cannot be imported without PyTorch.
SLOW, LAYERS, TOKENS = 1, 2, 24
RANKS = 4
STEPS = 6
WORDS = ("--ranks", str(RANKS), "--record", f"2:{STEPS}", "--steps", str(STEPS + 3))


def report(installation: Installation) -> dict[str, Any]:
    installation.analyze_all()
    (session,) = installation.client.get("/api/v1/sessions").json()["sessions"]
    found: dict[str, Any] = installation.client.get(
        f"/api/v1/sessions/{session['id']}/report"
    ).json()
    return found


@pytest.mark.slow
def test_experts_that_are_sent_more_tokens_are_named(
    installation: Installation, train: Train
) -> None:
    trained = train("--kind", "experts", "--url", installation.url, *WORDS)
    assert trained.code == 0, trained.said
    first = report(installation)["causes"][0]

    assert first["cause"] == "expert_parallel_imbalance"
    assert first["where"]["workers"] == [[SLOW, 0]]
    said = " ".join(first["evidence"])
    assert f"The experts of ({SLOW}, 0) are sent 50\u00a0% of the tokens" in said, said


@pytest.mark.slow
def test_a_rank_that_is_late_to_collectives_of_its_sequence_is_named(
    installation: Installation, train: Train
) -> None:
    trained = train("--kind", "sequences", "--url", installation.url, *WORDS)
    assert trained.code == 0, trained.said
    first = report(installation)["causes"][0]

    assert first["cause"] == "context_parallel_straggler"
    assert first["where"]["ranks"] == [SLOW]


@pytest.mark.slow
def test_groups_of_experts_are_read_off_megatron(train: Train) -> None:
    if importlib.util.find_spec("megatron") is None:
        skip_or_fail("megatron is not installed")
    trained = train("--kind", "megatron", "--url", NOWHERE, *WORDS)
    assert trained.code == 0, trained.said
    shares = trained.shares()

    for rank in range(RANKS):
        header, *rows = shares[f"rank-{rank}"][1]
        assert Counter(row["op"] for row in rows)["ep-all-to-all"] == 4 * LAYERS * STEPS
        assert header["meta"]["ep"] == 2
        assert header["meta"]["expert_tokens"]["2"] == {str(rank): LAYERS * TOKENS}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Two for each layer and direction, without the preceding all-to-alls of token counts.
        ("experts", {"ep-all-to-all": 4 * LAYERS * STEPS}),
        (
            "sequences",
            {"cp-all-gather": LAYERS * STEPS, "cp-reduce-scatter": LAYERS * STEPS},
        ),
    ],
)
def test_every_collective_of_the_group_is_recorded_and_no_other(
    train: Train, kind: str, expected: dict[str, int]
) -> None:
    trained = train("--kind", kind, "--url", NOWHERE, *WORDS)
    assert trained.code == 0, trained.said
    shares = trained.shares()

    assert len(shares) == RANKS
    for rank in range(RANKS):
        header, *rows = shares[f"rank-{rank}"][1]
        counts = Counter(row["op"] for row in rows)
        assert {op: n for op, n in counts.items() if op[:3] in {"ep-", "cp-"}} == expected
        meta = header["meta"]
        assert "hooks_left_out" not in meta
        if kind == "experts":
            came = RANKS * TOKENS // 2 // (1 if rank == SLOW else RANKS - 1) * LAYERS
            assert meta["ep"] == RANKS
            assert meta["expert_tokens"] == {
                str(step): {str(rank): came} for step in range(2, 2 + STEPS)
            }
