"""Names in a Host header, including invalid ones."""

from __future__ import annotations

import string

from hypothesis import example, given
from hypothesis import strategies as st

from app.web.guards import HostGuard


async def unused(*_arguments: object) -> None:
    raise AssertionError


GUARD = HostGuard(unused, ["paceline.example"])


NAMES = ("localhost", "LOCALHOST", "127.0.0.1", "[::1]", "paceline.example", "rebound.example")
MARKS = string.printable + "é[]:@/%\x00"
PARTS = st.sampled_from(NAMES) | st.sampled_from((":80", *MARKS))


@example("LOCALHOST:80")
@example("paceline.example")
@given(st.lists(PARTS, max_size=4).map("".join) | st.text(st.sampled_from(MARKS), max_size=40))
def test_no_header_confuses_the_guard(host: str) -> None:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.removesuffix(":").lower()
    answered = GUARD._answers(host)
    if answered:
        loopback = name == "localhost" or name.startswith(("127.", "[::1", "[0", "[::ffff:127."))
        assert loopback or name == "paceline.example"
