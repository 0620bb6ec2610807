"""The addresses that the server listens on, and those that it refuses."""

from __future__ import annotations

import socket

import pytest

from app.errors import StartupError
from app.platform.settings import Settings
from app.run.http import address_of, listen, reachable_by_others


def test_port_zero_is_any_free_one() -> None:
    with listen(Settings(port=0)) as one, listen(Settings(port=0)) as other:
        assert address_of(one) == f"http://127.0.0.1:{one.getsockname()[1]}/"
        assert one.getsockname()[1] != other.getsockname()[1] != 0


def test_a_taken_port_is_refused_in_words() -> None:
    with (
        listen(Settings(port=0)) as taken,
        pytest.raises(StartupError, match=r"Address already in use.*PACELINE_PORT"),
    ):
        listen(Settings(port=taken.getsockname()[1]))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 - only asked about
def test_hosts_that_are_no_loopback_address_are_reachable_by_others(host: str) -> None:
    assert reachable_by_others(Settings(host=host, port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_no_one_else_can_reach_a_loopback_address(host: str) -> None:
    assert not reachable_by_others(Settings(host=host, port=0))


def test_every_address_may_be_listened_on() -> None:
    with listen(Settings(host="0.0.0.0", port=0)) as listener:  # noqa: S104 - meant
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://127.0.0.1:{port}/"
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_an_address_of_another_machine_is_refused_in_words() -> None:
    settings = Settings(host="192.0.2.1", port=0)
    with pytest.raises(StartupError, match=r"Cannot listen on 192\.0\.2\.1"):
        listen(settings)


def test_answers_are_not_held_back_for_acknowledgements() -> None:
    with listen(Settings(port=0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
