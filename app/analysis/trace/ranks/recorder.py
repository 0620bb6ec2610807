"""What a recorder says of itself in a session's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_KEY: Final = "recorded_by"
_HOST: Final = "host"
_DEVICE: Final = "device"
_WAITS: Final = "waits"


@dataclass(frozen=True, slots=True)
class Recorder:
    """How a session was recorded; nothing is known of a recorder that does not say it."""

    on_host: bool = False  # operations ran on processors, and were timed by their host's clock
    # Collectives within computations are recorded while these wait for them, and not meanwhile.
    only_waits: bool = False


def recorder_of(extra: Mapping[str, Any]) -> Recorder:
    """Return what a session's further metadata say of its recorder.

    Examples
    --------
    >>> recorder_of({"recorded_by": {"clock": "host", "inside": "waits"}})
    Recorder(on_host=True, only_waits=True)
    """
    said = extra.get(_KEY)
    if not isinstance(said, dict):
        return Recorder()
    return Recorder(on_host=said.get("clock") == _HOST, only_waits=said.get("inside") == _WAITS)


def said_of_recorder(*, on_host: bool) -> dict[str, dict[str, str]]:
    """Return further metadata that say of a recorder that it records waits within computations."""
    return {_KEY: {"clock": _HOST if on_host else _DEVICE, "inside": _WAITS}}
