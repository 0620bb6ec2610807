"""Which addresses a channel may be at: a guard against requests into the operator's own network.

Whoever may add a channel could otherwise make the server talk to whatever it can reach: metadata
services of clouds, databases, other people's machines. The name is resolved when the connection is
made and the connection goes to an address that was checked, so a name that changes its address
between two look-ups (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from app.alerts.delivery import DeliveryError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Global according to the standard library, and yet not a host on the internet: groups of hosts,
# IPv4 addresses of any kind in disguise (NAT64, 6to4), and the site-local ones of old.
DENIED: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "224.0.0.0/4",
        "ff00::/8",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2002::/16",
        "2001::/32",
        "fec0::/10",
        "::ffff:0:0/96",
        "::/96",
    )
)

Resolve = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, in the order in which to try them.

    Raises
    ------
    OSError
        If there are none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """Resolves names and refuses addresses."""

    allowed: tuple[Network, ...] = ()  # private ranges that the operator allows
    resolve: Resolve = resolve  # takes a host and a port, returns addresses

    def permits(self, address: Address) -> bool:
        """Return whether an address may be talked to."""
        # An address of the other version is in no network.
        if any(address in network for network in self.allowed):
            return True
        return address.is_global and not any(address in network for network in DENIED)

    def addresses(self, host: str, port: int, limit_s: float) -> list[str]:
        """Return the addresses of a host, all of which may be talked to.

        One that is refused refuses the host: a name of a public and a private address is made for
        nothing good.

        Raises
        ------
        DeliveryError
            ``address.refused`` for good; ``dns.failed`` for now.
        """
        if limit_s <= 0:
            raise DeliveryError("timeout", "The time for this attempt is over.")
        found = self._look_up(host, port, limit_s)
        for text in found:
            # A link-local address comes with its interface: fe80::1%eth0
            address = ipaddress.ip_address(text.partition("%")[0])
            if not self.permits(address):
                raise DeliveryError(
                    "address.refused",
                    f"{host} is at {address}, which is not on the public internet; the operator "
                    "can allow its network with PACELINE_ALERT_ALLOWED_NETWORKS.",
                    permanent=True,
                )
        return found

    def _look_up(self, host: str, port: int, limit_s: float) -> list[str]:
        # The system's resolver has no limit of its own that we could set: a thread waits for it.
        answer: list[str] = []
        failure: list[OSError] = []

        def look_up() -> None:
            try:
                answer.extend(self.resolve(host, port))
            except (OSError, UnicodeError) as error:
                failure.append(OSError(str(error)))

        thread = threading.Thread(target=look_up, name="paceline-resolve", daemon=True)
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            raise DeliveryError("dns.failed", f"Looking up {host} took too long.")
        if failure or not answer:
            why = f": {failure[0]}" if failure else "."
            raise DeliveryError("dns.failed", f"{host} has no address{why}")
        return answer
