"""Names in a Host header, including invalid ones."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from app.web.guards import HostGuard


async def unused(*_arguments: object) -> None:
    raise AssertionError


GUARD = HostGuard(unused, ["paceline.example"])


@given(st.text(st.sampled_from(string.printable + "é[]:@/%\x00"), max_size=40))
def test_no_header_confuses_the_guard(host: str) -> None:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removesuffix(":").lower()
    answered = GUARD._answers(host)
    if answered:
        loopback = name == "localhost" or name.startswith(("127.", "[::1", "[0", "[::ffff:127."))
        assert loopback or name == "paceline.example"
