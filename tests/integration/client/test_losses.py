"""A training computes bit for bit the same with and without the client."""

from __future__ import annotations

import pytest

from tests.integration.client.conftest import NOWHERE, Train


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "kinds"),
    [(2, "ddp,powersgd,fsdp2,pipelining"), (3, "ddp"), (4, "ddp")],
)
def test_losses_are_the_same_to_the_last_bit(train: Train, ranks: int, kinds: str) -> None:
    trained = train("--kind", kinds, "--ranks", str(ranks), "--twice", "--url", NOWHERE)

    assert trained.code == 0, trained.said
    for kind in kinds.split(","):
        seen = set()
        for rank in range(ranks):
            alone = trained.told(f"{kind}-without-rank-{rank}")
            attached = trained.told(f"{kind}-with-rank-{rank}")
            assert alone["losses"] == attached["losses"]
            seen |= set(alone["losses"])
            (outcome,) = attached["outcomes"]
            assert outcome["recorded"] > 0
            assert (outcome["dropped"], outcome["dropped_steps"]) == (0, [])
        assert len(seen) >= 8, "it learns"
