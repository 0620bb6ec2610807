from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from app.web import format as fmt

NBSP = "\N{NO-BREAK SPACE}"
# The same cases as in the test of the pages' scripts (tests/js/format.test.js).
NUMBERS = json.loads((Path(__file__).parents[2] / "js" / "number_cases.json").read_text())


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_written_as_the_scripts_write_them(name: str) -> None:
    write = getattr(fmt, name)
    for value, words in NUMBERS[name]:
        assert write(value).replace(NBSP, " ") == words


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(1.97305, 2, "1.97×"), (1.97305, 3, "1.973×"), (-0.0012, 2, "0.00×"), (-1.5, 1, "−1.5×")],
)
def test_slowdowns_carry_their_sign_and_no_negative_zero(
    value: float, digits: int, text: str
) -> None:
    assert fmt.times(value, digits) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.494, "49 %"), (0.011, "1.1 %"), (0.0994, "9.9 %"), (0.0996, "10 %"), (-0.0012, "−0.1 %")],
)
def test_shares_in_sentences_keep_two_digits_at_most(share: float, text: str) -> None:
    assert fmt.rough_percent(share) == text.replace(" ", NBSP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (46.29, "46.3 s"),
        (1.843, "1.84 s"),
        (0.4116, "412 ms"),
        (0.00052, "0.52 ms"),
        (1234.4, "1,234 s"),
    ],
)
def test_durations_keep_three_digits(value: float, text: str) -> None:
    assert fmt.seconds(value) == text.replace(" ", NBSP)


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (-3, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (11_520, "3 h 12 min"),
        (200_000, "2 d"),
    ],
)
def test_ages_name_at_most_two_units(duration_s: float, text: str) -> None:
    assert fmt.age(duration_s).replace(NBSP, " ") == text


def test_moments_are_shown_in_utc() -> None:
    moment = datetime(2026, 11, 20, 10, 26, 12, tzinfo=timezone(timedelta(hours=1)))
    assert fmt.exact_time(moment) == "20 Nov 2026 09:26:12 UTC"


def test_sizes_of_bodies_are_binary() -> None:
    assert [fmt.byte_size(size).replace(NBSP, " ") for size in (12, 1536, 1_153_434, 2**42)] == [
        "12 B",
        "1.5 KiB",
        "1.1 MiB",
        "4.0 TiB",
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_lists_read_like_sentences(words: list[str], text: str) -> None:
    assert fmt.listing(words) == text


def test_sizes_of_jobs_omit_unused_dimensions() -> None:
    assert fmt.sizes(4, 4, 4).replace(NBSP, " ") == "DP 4 × PP 4 × TP 4"
    assert fmt.sizes(8, 4, 4, 2, 3).replace(NBSP, " ") == (
        "DP 8 × PP 4 × TP 4 × CP 2, 3 chunks a stage"
    )


def test_the_color_scale_is_fixed_and_clamped() -> None:
    assert fmt.heat_color(0.98) == "var(--s-100)"
    assert fmt.heat_color(1.25) == "var(--s-125)"
    assert fmt.heat_color(9.9) == "var(--s-150)"
    assert fmt.heat_color(1.0175) == "color-mix(in srgb, var(--s-105) 35%, var(--s-100))"
