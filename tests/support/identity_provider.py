"""A provider of OpenID Connect: oidc-provider-mock, in a separate process."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import httpx

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def identity_provider(*people: dict[str, Any]) -> Iterator[str]:
    """Serve a provider with these users, given by their claims; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    known = [word for person in people for word in ("--user-claims", json.dumps(person))]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(  # noqa: S603 - of the development dependencies
        [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *known],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        assert process.poll() is None, "the provider ended"
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/jwks", trust_env=False).is_success
        return False

    try:
        wait_for(answers, "the identity provider")
        yield url
    finally:
        process.terminate()
        process.wait()


def vouch(address: str, subject: str) -> str:
    """Sign in at the provider as a user, and return where it redirects the browser."""
    with httpx.Client(trust_env=False) as browser:
        page = browser.get(address)
        action = re.search(r'<form[^>]*action="([^"]+)"', page.text)
        target = urljoin(address, action[1].replace("&amp;", "&")) if action else address
        answer = browser.post(target, data={"sub": subject, "action": "authorize"})
    assert answer.is_redirect, answer.text
    return answer.headers["location"]
