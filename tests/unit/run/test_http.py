"""Where the server listens, and what it refuses to."""

from __future__ import annotations

import socket

import pytest

from app.errors import StartupError
from app.run.http import address_of, listen
from app.settings import Settings


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


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 - refused
def test_addresses_that_others_can_reach_are_refused(host: str) -> None:
    with pytest.raises(StartupError, match="PACELINE_ALLOW_UNAUTHENTICATED_NETWORK"):
        listen(Settings(host=host, port=0))


def test_a_trusted_network_may_be_listened_on() -> None:
    settings = Settings(host="0.0.0.0", port=0, allow_unauthenticated_network=True)  # noqa: S104 - meant
    with listen(settings) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://127.0.0.1:{port}/"
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_an_address_of_another_machine_is_refused_in_words() -> None:
    settings = Settings(host="192.0.2.1", port=0, allow_unauthenticated_network=True)
    with pytest.raises(StartupError, match=r"Cannot listen on 192\.0\.2\.1"):
        listen(settings)


def test_answers_are_not_held_back_for_acknowledgements() -> None:
    with listen(Settings(port=0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
