"""What settings are refused, and what follows from them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.services.sessions.seal import SILENCE_S, silence
from app.settings import Settings

DAY_S = 24 * 3600.0


@pytest.mark.parametrize("limit_s", [0.0, -1.0, DAY_S + 1, float("inf"), float("nan")])
def test_the_silence_that_seals_a_session_is_a_day_at_most(limit_s: float) -> None:
    with pytest.raises(ValidationError):
        Settings(session_silence_limit_s=limit_s)


def test_however_long_the_pauses_were_the_setting_seals() -> None:
    assert silence(0.0, DAY_S).total_seconds() == SILENCE_S
    assert silence(1e9, Settings().session_silence_limit_s).total_seconds() == DAY_S
    assert silence(1e9, Settings(session_silence_limit_s=60.0).session_silence_limit_s) == silence(
        0.0, 60.0
    )


@pytest.mark.parametrize(
    ("url", "over_tls"),
    [
        (None, False),
        ("http://paceline.example", False),
        ("https://paceline.example", True),
        ("HTTPS://paceline.example", True),
    ],
)
def test_people_come_over_tls_where_their_address_says_so(url: str | None, over_tls: bool) -> None:  # noqa: FBT001 - parametrized
    assert Settings(external_url=url).served_over_tls is over_tls
