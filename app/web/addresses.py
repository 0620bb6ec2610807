"""The server's own address in its answers, and the peer that a connection counts for.

A Host header alone is no proof of the server's address.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from app.platform.settings import Settings


def server_address(request: Request, settings: Settings) -> str:
    """Return the address from which links of an answer are built, without a slash at its end.

    It is the configured one, else the one that the request names, where that name is a loopback one
    or allowed; any other name may be anyone's, and the address that took the connection stands for
    it.
    """
    if settings.external_url is not None:
        return settings.external_url.rstrip("/")
    name = host_name(request.headers.get("host", ""))
    allowed = {allowed.lower() for allowed in settings.allowed_hosts}
    if name is not None and (name in allowed or is_loopback(name)):
        return str(request.base_url).rstrip("/")
    host, port = request.scope["server"]
    return f"{request.url.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


# Of all requests of a client it is the same; few, as it may be long.
@functools.lru_cache(maxsize=64)
def host_name(host: str) -> str | None:
    """Return the name or address in a Host header, lower case, without its port."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises on a port that is none
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


@functools.lru_cache(maxsize=64)
def is_loopback(name: str) -> bool:
    """Return whether a host name or address is one of the machine itself."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


# What one customer of a provider has at least: all of it counts as one peer.
_IPV6_PREFIX: Final = 64


# Each of the few that connections come from is asked about with every request.
@functools.lru_cache(maxsize=4096)
def peer_of(host: str) -> str:
    """Return the peer that an address's connections count for.

    Examples
    --------
    >>> peer_of("192.0.2.7"), peer_of("2001:db8:0:1::7")
    ('192.0.2.7', '2001:db8:0:1::/64')
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:  # noqa: PLR2004 - of the protocol
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
