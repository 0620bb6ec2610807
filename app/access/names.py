"""Names of who acts, as pages and the audit log show them: bounded, printable, and of whom."""

from __future__ import annotations

from typing import Final

MAX_NAME_CHARACTERS: Final = 100
_SCHEME: Final = "://"


def clipped(text: str, characters: int) -> str:
    r"""Return a text of printable characters, and of `limit` at most.

    Examples
    --------
    >>> clipped("grace\nhopper", 7)
    'grace?…'
    """
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain if len(plain) <= characters else plain[: characters - 1] + "…"


def full_name(name: str, issuer: str | None) -> str:
    """Return a person's name with the provider that vouches for it.

    Two providers, or a provider and this server, may each have a user of the same name.

    Examples
    --------
    >>> full_name("ada", None), full_name("ada", "https://login.example/realms/company")
    ('ada', 'ada (login.example/realms/company)')
    """
    bounded = clipped(name, MAX_NAME_CHARACTERS)
    if issuer is None:
        return bounded
    return f"{bounded} ({clipped(issuer.partition(_SCHEME)[2] or issuer, MAX_NAME_CHARACTERS)})"
