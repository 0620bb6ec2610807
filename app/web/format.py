"""Uniform formats of numbers, times and colors on all pages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

NBSP: Final = "\N{NO-BREAK SPACE}"
MINUS: Final = "\N{MINUS SIGN}"
TIMES: Final = "\N{MULTIPLICATION SIGN}"
EN_DASH: Final = "\N{EN DASH}"

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86400

# The slowdown scale is fixed: 1.0 to 1.5 in steps of 0.05, with a color token for each step
# (tokens.css).
SCALE_LOW: Final = 1.0
SCALE_HIGH: Final = 1.5
SCALE_STOPS: Final = tuple(f"--s-{stop}" for stop in range(100, 151, 5))

_KIB: Final = 1024
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def _signed(text: str) -> str:
    """Write a negative number with a minus sign, and a number rounded to zero without sign."""
    if not text.startswith("-"):
        return text
    digits = text[1:]
    return f"{MINUS}{digits}" if digits.strip("0.,") else digits


def times(value: float, digits: int = 2) -> str:
    """Return a slowdown as text: ``1.97×``."""
    return f"{_signed(f'{value:.{digits}f}')}{TIMES}"


def ratio(value: float, digits: int = 2) -> str:
    """Return a number without a unit as text: ``0.88``, ``−0.12``."""
    return _signed(f"{value:.{digits}f}")


def percent(share: float, digits: int = 1) -> str:
    """Return a share of 1 as a percentage: ``36.7 %``."""
    return f"{_signed(f'{100 * share:.{digits}f}')}{NBSP}%"


def rough_percent(share: float) -> str:
    """Return a share as a rounded percentage for a sentence: ``49 %``, ``1.1 %``."""
    return percent(share, rough_digits(share))


def rough_digits(share: float) -> int:
    """Return the number of decimals of a share's percentage in a sentence."""
    return 0 if abs(share) >= 0.0995 else 1  # noqa: PLR2004 - 9.95 % rounds to 10 %


def interval(low: float, high: float, digits: int = 3) -> str:
    """Return an interval as text: ``1.969–1.977``."""
    return f"{low:.{digits}f}{EN_DASH}{high:.{digits}f}"


def count(value: int) -> str:
    """Return a count with separated thousands: ``117,216``."""
    return f"{value:,}"


def plural(value: int, noun: str, plural_noun: str | None = None) -> str:
    """Return a count with its noun: ``1 step``, ``44 steps``."""
    return f"{count(value)}{NBSP}{noun if value == 1 else plural_noun or noun + 's'}"


def seconds(value: float) -> str:
    """Return a duration in seconds with three digits: ``46.3 s``, ``412 ms``."""
    size = abs(value)
    if size >= 100:  # noqa: PLR2004 - three digits are enough
        return f"{value:,.0f}{NBSP}s"
    if size >= 10:  # noqa: PLR2004 - three digits are enough
        return f"{value:.1f}{NBSP}s"
    if size >= 1:
        return f"{value:.2f}{NBSP}s"
    return f"{1000 * value:.3g}{NBSP}ms"


def age(duration_s: float) -> str:
    """Return the age of something as text: ``12 s``, ``4 min``, ``3 h 12 min``, ``2 d``."""
    whole = max(0, int(duration_s))
    if whole < MINUTE_S:
        return f"{whole}{NBSP}s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}{NBSP}min"
    if whole < DAY_S:
        rest = whole % HOUR_S // MINUTE_S
        head = f"{whole // HOUR_S}{NBSP}h"
        return f"{head} {rest}{NBSP}min" if rest else head
    return f"{whole // DAY_S}{NBSP}d"


def exact_time(moment: datetime) -> str:
    """Return a time in UTC with date and seconds: ``20 Nov 2026 09:26:12 UTC``."""
    utc = moment.astimezone(UTC)
    return f"{utc.day} {utc:%b %Y %H:%M:%S} UTC"


def byte_size(size: int) -> str:
    """Return a size in binary units: ``1.1 MiB``."""
    value = float(size)
    for unit in _UNITS:
        if value < _KIB or unit == _UNITS[-1]:
            return f"{value:.0f}{NBSP}{unit}" if unit == "B" else f"{value:.1f}{NBSP}{unit}"
        value /= _KIB
    raise AssertionError("unreachable: the last unit always returns")


def worker(dp: int, pp: int) -> str:
    """Return a worker's coordinates, DP rank first: ``(0, 3)``."""
    return f"({dp},{NBSP}{pp})"


def listing(parts: list[str]) -> str:
    """Join words to an enumeration: ``a``, ``a and b``, ``a, b and c``."""
    if len(parts) <= 1:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def sizes(dp: int, pp: int, tp: int, cp: int = 1, vpp: int = 1) -> str:
    """Return a parallelism as text, without optional sizes of 1: ``DP 4 × PP 4 × TP 4``."""
    parts = [f"DP{NBSP}{dp}", f"PP{NBSP}{pp}", f"TP{NBSP}{tp}"]
    if cp > 1:
        parts.append(f"CP{NBSP}{cp}")
    text = f" {TIMES} ".join(parts)
    return f"{text}, {vpp} chunks a stage" if vpp > 1 else text


def short_sizes(dp: int, pp: int, tp: int, cp: int = 1, vpp: int = 1) -> str:
    """Return a parallelism for a column whose heading names DP, PP and TP: ``4 × 4 × 8, CP 2``."""
    parts = [f"{NBSP}{TIMES}{NBSP}".join(map(str, (dp, pp, tp)))]
    parts += [f"{name}{NBSP}{size}" for name, size in (("CP", cp), ("VPP", vpp)) if size > 1]
    return ", ".join(parts)


def heat_color(slowdown: float) -> str:
    """Return the CSS color of a slowdown on the fixed scale, valid in both themes.

    Parameters
    ----------
    slowdown : float
        Clamped to 1.0 … 1.5.
    """
    span = (SCALE_HIGH - SCALE_LOW) / (len(SCALE_STOPS) - 1)
    position = min(max((slowdown - SCALE_LOW) / span, 0.0), len(SCALE_STOPS) - 1.0)
    below = int(position)
    share = round(100 * (position - below))
    if share == 0:
        return f"var({SCALE_STOPS[below]})"
    return f"color-mix(in srgb, var({SCALE_STOPS[below + 1]}) {share}%, var({SCALE_STOPS[below]}))"
