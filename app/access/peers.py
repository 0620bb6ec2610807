"""Whom an address counts for."""

from __future__ import annotations

import functools
import ipaddress
from typing import Final

# What one customer of a provider has at least: all of it counts as one peer.
_IPV6_PREFIX: Final = 64


# Each of the few that connections come from is asked about with every request.
@functools.lru_cache(maxsize=4096)
def peer_of(host: str) -> str:
    """Return whom the connections of an address count for.

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
