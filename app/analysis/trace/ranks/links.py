"""Links of a job to where else it can be looked at: its run at W&B, its logs, its pull request.

Who sends a session writes them and others follow them: an address is of the web, names its host and
holds no password, so that it neither runs a script nor tells a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from app.analysis.trace.ranks.values import is_name, mapping_of, refuse, shown

KEY: Final = "links"
MAX_LINKS: Final = 16
MAX_ADDRESS_CHARS: Final = 1000
SCHEMES: Final = ("http", "https")


def parse_links(document: Mapping[object, object]) -> dict[str, str]:
    """Return the links of a metadata document: addresses by what they are called.

    Raises
    ------
    InvalidMetadataError
        ``metadata.bad_link``
    """
    links = mapping_of(document, KEY)
    if len(links) > MAX_LINKS:
        refuse(f"there are {len(links)} links, and {MAX_LINKS} is the most", "bad_link", column=KEY)
    found: dict[str, str] = {}
    for name, address in links.items():
        problem = _problem(name, address)
        if problem is not None:
            refuse(f"the link {shown(name)} {problem}", "bad_link", column=KEY)
        found[str(name)] = str(address)
    return found


def sound_links(said: object) -> dict[str, str]:
    """Return those links of a stored document that may be followed.

    Shares of a session are joined without being looked at again, and sessions of versions before
    may hold anything under that key.
    """
    if not isinstance(said, Mapping):
        return {}
    sound = [(str(name), str(url)) for name, url in said.items() if _problem(name, url) is None]
    return dict(sound[:MAX_LINKS])


def _problem(name: object, address: object) -> str | None:
    """Return what is wrong with a link; None where nothing is."""
    if not isinstance(name, str) or not name.strip() or not is_name(name):
        return "has no name of printable text"
    if not isinstance(address, str) or not address.isprintable() or set(address) & {" ", "\\"}:
        return f"is no address: {shown(address)}"
    if len(address) > MAX_ADDRESS_CHARS:
        return f"is longer than {MAX_ADDRESS_CHARS} characters"
    try:
        parts = urlsplit(address)
        whole = parts.port is None or bool(parts.hostname)
    except ValueError:
        whole = False
    if not whole or parts.scheme not in SCHEMES or not parts.hostname:
        return f"must be an address of http:// or https://, not {shown(address)}"
    return "must not hold a user name or a password" if "@" in parts.netloc else None
