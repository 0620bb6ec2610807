"""The server's address in answers, for any Host header of a request."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from app.platform.settings import Settings
from app.web.addresses import server_address


def request(host: str, server: tuple[str, int] = ("10.0.0.5", 8765)) -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/",
            "query_string": b"",
            "server": server,
            "headers": [(b"host", host.encode())],
        }
    )


@pytest.mark.parametrize("host", ["elsewhere.example", "127.0.0.1:8765", "allowed.example"])
def test_the_configured_address_is_used_for_every_visitor(host: str) -> None:
    settings = Settings(
        external_url="https://paceline.example/", allowed_hosts=("allowed.example",)
    )

    assert server_address(request(host), settings) == "https://paceline.example"


@pytest.mark.parametrize(
    "host", ["localhost:9000", "127.0.0.1:8765", "[::1]:1", "allowed.example", "Allowed.example:80"]
)
def test_a_loopback_or_allowed_name_is_repeated(host: str) -> None:
    settings = Settings(allowed_hosts=("ALLOWED.example",))

    assert server_address(request(host), settings) == f"http://{host}"


@pytest.mark.parametrize("host", ["evil.example", "evil.example@localhost", "", "x:99999999"])
def test_any_other_name_is_not(host: str) -> None:
    assert server_address(request(host), Settings()) == "http://10.0.0.5:8765"
    assert server_address(request(host, ("fd00::5", 8765)), Settings()) == "http://[fd00::5]:8765"
