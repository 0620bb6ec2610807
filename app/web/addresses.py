"""The server's own address for links in answers, and the peer to which a connection belongs.

A Host header alone does not prove the server's address.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from app.platform.settings import Settings


def server_address(request: Request, settings: Settings) -> str:
    """Return the server's address for links in an answer, without a trailing slash.

    The configured address, else the address in the request if its host is a loopback name or
    allowed in the settings. Any other Host header may be forged, so it is replaced by the address
    that accepted the connection.
    """
    if settings.external_url is not None:
        return settings.external_url.rstrip("/")
    name = host_name(request.headers.get("host", ""))
    allowed = {allowed.lower() for allowed in settings.allowed_hosts}
    if name is not None and (name in allowed or is_loopback(name)):
        return str(request.base_url).rstrip("/")
    host, port = request.scope["server"]
    return f"{request.url.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


# All requests of a client have the same Host header. Few are cached, because a header may be long.
@functools.lru_cache(maxsize=64)
def host_name(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case and without the port."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises on a port that is none
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and "@" not in host else None


@functools.lru_cache(maxsize=64)
def is_loopback(name: str) -> bool:
    """Return whether a host name or address is a loopback name or address."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


# Length in bits of the IPv6 prefix that a provider assigns to a customer at least: all addresses
# with the same prefix count as one peer.
_IPV6_PREFIX: Final = 64


# Called with every request, for the few addresses that connect to the server.
@functools.lru_cache(maxsize=4096)
def peer_of(host: str) -> str:
    """Return the peer to which the connections of an address belong.

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
