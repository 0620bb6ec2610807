"""Names of who acts, as pages and the audit log show them: bounded, printable, and of whom."""

from __future__ import annotations

from typing import Final

from app.access.lookalikes import lookalike
from app.errors import Fault

MAX_NAME_CHARACTERS: Final = 100
MAX_JOB_NAME_CHARACTERS: Final = 200
JOB_NAMES: Final = (
    f"1 to {MAX_JOB_NAME_CHARACTERS} printable characters of any script, without a slash and "
    "without blanks around them"
)
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


def is_plain_name(name: str, max_characters: int) -> bool:
    """Return whether a name survives in an address and on a page."""
    return (
        0 < len(name) <= max_characters
        and name.isprintable()
        and name == name.strip()
        and "/" not in name
        and name not in (".", "..")
    )


def job_name_fault(name: str) -> str | None:
    """Return in a sentence why a name cannot be a job's; None where it can.

    Examples
    --------
    >>> job_name_fault("team/llama").partition(":")[0]
    'team/llama has a slash, which would be a folder in an address'
    """
    if is_plain_name(name, MAX_JOB_NAME_CHARACTERS):
        return None
    rule = f"A job's name has {JOB_NAMES}."
    if "/" in name:
        shown = clipped(name, MAX_NAME_CHARACTERS)
        return (
            f"{shown} has a slash, which would be a folder in an address: write - or . instead. "
            f"{rule}"
        )
    return rule


def new_name_fault(name: str) -> Fault | None:
    """Return why a user, a token or a channel cannot be given a name; None where it can."""
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable() or name != name.strip():
        said = f"1 to {MAX_NAME_CHARACTERS} printable characters, without blanks around them."
        return Fault("name", said, column="name")
    alike = lookalike(name)
    return None if alike is None else Fault("lookalike", f"The name {alike}.", column="name")
