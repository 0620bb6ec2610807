"""Names that look like other names."""

from __future__ import annotations

import pytest

from app.platform.names import lookalike


@pytest.mark.parametrize(
    "name",
    [
        "llama-70b",
        "café",
        "naïve_Ångström",
        "café-漢",
        "東京タワーの実験-70b",
        "한국어 llama",
        "большая-модель",
        "λ-ανάλυση",
        "हिन्दी",
        "ภาษาไทย",
        "العربية",
        "step=5µs",
        "m² ½ № … 🚀",
    ],
)
def test_names_of_one_script_and_latin_next_to_east_asian_ones_are_plain(name: str) -> None:
    assert lookalike(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ll\u0430ma", "mixes Latin and Cyrillic letters, which look alike: \u0430 (U+0430)"),
        ("\u0430-llama", "mixes Latin and Cyrillic letters, which look alike: \u0430 (U+0430)"),
        ("m\u03bfdel", "mixes Latin and Greek letters, which look alike: \u03bf (U+03BF)"),
        ("\u0430\u03bf", "mixes Cyrillic and Greek letters, which look alike: \u03bf (U+03BF)"),
        ("漢-\u0430", "mixes East Asian and Cyrillic letters, which look alike: \u0430 (U+0430)"),
        ("हिन्दी-漢", "mixes Devanagari and East Asian letters: 漢 (U+6F22)"),
        ("cafe\u0301", "has an accent apart from its letter: U+0301"),
        ("x\u0302", "has an accent apart from its letter: U+0302"),
        ("job\ufe0f", "has a character that is not seen: U+FE0F"),
        ("job\u3164", "has a character that is not seen: U+3164"),
        ("\uff4aob", "has a character that looks like j: \uff4a (U+FF4A)"),
        ("\U0001d423ob", "has a character that looks like j: \U0001d423 (U+1D423)"),
        ("\u212bngström", "has a character that Unicode writes in another way"),
    ],
)
def test_a_name_that_looks_like_another_is_reported(name: str, said: str) -> None:
    assert lookalike(name) == said
