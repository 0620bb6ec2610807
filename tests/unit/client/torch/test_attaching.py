"""The default rank or node that sends the shares of a job."""

from __future__ import annotations

import pytest

from tests.support.extras import of_real_jobs

of_real_jobs("torch")

from paceline_client.torch.attaching import default_relay  # noqa: E402


@pytest.mark.parametrize(
    ("world", "launcher", "sends"),
    [
        (15, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, "rank"),
        (16, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, "node"),
        # Without both variables no rank knows the others of its host, so each sends its own share.
        (1024, {"LOCAL_RANK": "3"}, "rank"),
        (1024, {}, "rank"),
    ],
)
def test_one_rank_of_a_host_sends_for_all_from_sixteen_ranks_on(
    monkeypatch: pytest.MonkeyPatch, world: int, launcher: dict[str, str], sends: str
) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    assert default_relay(world) == sends
