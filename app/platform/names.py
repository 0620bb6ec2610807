"""Detection of names that look like other names: mixed scripts, stacked accents, invisible blanks.

Follows Unicode Technical Standard 39, level "moderately restrictive": Latin letters may be mixed
with one other script, but not with a script whose letters look like Latin ones.
"""

from __future__ import annotations

import unicodedata
from typing import Final

LATIN: Final = "Latin"
EAST_ASIAN: Final = "East Asian"
# Scripts that East Asian writing systems use together.
_EAST_ASIAN_WORDS: Final = frozenset(
    {"CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"}
)
# Scripts whose letters look like Latin letters and like each other's.
_ALIKE: Final = frozenset({"Greek", "Cyrillic", "Armenian", "Cherokee", "Coptic", "Lisu"})
# Blocks of accents that combine with any letter; marks of single scripts are in other blocks.
_ACCENTS: Final = (
    range(0x0300, 0x0370),
    range(0x1AB0, 0x1B00),
    range(0x1DC0, 0x1E00),
    range(0x20D0, 0x2100),
    range(0xFE20, 0xFE30),
)
# Printable characters without a visible shape: fillers, the empty Braille pattern, and variation
# selectors.
_BLANKS: Final = (
    range(0x115F, 0x1161),
    range(0x2800, 0x2801),
    range(0x3164, 0x3165),
    range(0xFE00, 0xFE10),
    range(0xFFA0, 0xFFA1),
    range(0xE0100, 0xE01F0),
)


def lookalike(name: str) -> str | None:
    """Return how a name can be mistaken for another, as a predicate of "the name"; None if not.

    Examples
    --------
    >>> lookalike("llama-70b"), lookalike("café-漢")
    (None, None)
    >>> lookalike("llama\u0301")
    'has an accent apart from its letter: U+0301'
    """
    if name.isascii():
        return None
    for character in name:
        if _is_in(character, _ACCENTS):
            return f"has an accent apart from its letter: {_code(character)}"
        if _is_in(character, _BLANKS):
            return f"has a character that is not seen: {_code(character)}"
        plain = unicodedata.normalize("NFKC", character)
        if character.isalpha() and plain != character and plain.isascii():
            return f"has a character that looks like {plain}: {character} ({_code(character)})"
    if unicodedata.normalize("NFC", name) != name:
        return "has a character that Unicode writes in another way"
    return _mixture(name)


def _mixture(name: str) -> str | None:
    scripts: dict[str, str] = {}
    for character in name:
        if character.isalpha():
            scripts.setdefault(_script(character), character)
    others = [script for script in scripts if script != LATIN]
    if len(others) > 1:
        first, second, *_ = others
    elif others and LATIN in scripts and others[0] in _ALIKE:
        first, second = LATIN, others[0]
    else:
        return None
    alike = ", which look alike" if second in _ALIKE else ""
    letter = scripts[second]
    return f"mixes {first} and {second} letters{alike}: {letter} ({_code(letter)})"


def _script(letter: str) -> str:
    word = unicodedata.name(letter, "?").partition(" ")[0].partition("-")[0]
    # The micro sign looks like a Greek letter but is used within Latin text.
    if word in {"LATIN", "MICRO", "FEMININE", "MASCULINE"}:
        return LATIN
    return EAST_ASIAN if word in _EAST_ASIAN_WORDS else word.capitalize()


def _is_in(character: str, blocks: tuple[range, ...]) -> bool:
    return any(ord(character) in block for block in blocks)


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
