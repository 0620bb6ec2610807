"""Check texts, messages, names and comments for unwanted words: ``python scripts/words.py``.

The table contains a plainer word for each. Fails if an unwanted word is used; terms of the field
are defined in docs/glossary.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Final

FOLDERS: Final = (
    *("app", "workers", "client", "frontend", "migrations", "tests"),
    *("benchmarks", "docs", "examples", "scripts", ".ci"),
)
WRITTEN: Final = frozenset(
    {".css", ".html", ".js", ".mako", ".md", ".py", ".sh", ".toml", ".ts", ".txt", ".yml"}
)
# Skipped: texts of others, built files, and this file.
LEFT_OUT: Final = frozenset({"vendor", "site", "node_modules", "build", "words.py"})
# Pattern of each unwanted word, and its replacement.
WORDS: Final = {
    "so many": "that many, a number of, too many",
    # Except the operating system's account of this name.
    'nobody(?!")': "no one, no user, nothing",
    "somebody": "someone, a user",
    "besides?": "next to, and, as well as",
    "dearest": "most expensive",
    "of its own accord": "by itself",
    "what became of": "the outcome of",
    "told of": "notified about",
}
# Number of allowed occurrences in each room; these numbers only decrease.
ALLOWED: Final[dict[str, int]] = {}
# A pattern may contain the end of a line, also within a comment.
UNWANTED: Final = re.compile(
    rf"(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])".replace(" ", r"[\s_#*]+"), re.IGNORECASE
)


def files(root: Path) -> list[Path]:
    """Return the checked files in order."""
    paths = [path for path in root.iterdir() if path.is_file()]
    for folder in FOLDERS:
        paths += [path for path in (root / folder).rglob("*") if path.is_file()]
    return sorted(
        path
        for path in paths
        if (path.suffix in WRITTEN or path.name == "Makefile")
        and not LEFT_OUT.intersection(path.relative_to(root).parts)
        and not any(part.endswith(".egg-info") for part in path.parts)
    )


def room(path: Path, root: Path) -> str:
    """Return the first two folders of a file's path."""
    return "/".join(path.relative_to(root).parts[:-1][:2])


def main() -> int:
    """Print each place of an unwanted word; return 1 if there are more than allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--counts", action="store_true", help="print the counts of the rooms only")
    options = parser.parse_args()
    hits: dict[str, list[str]] = {}
    for path in files(options.root):
        text = path.read_text(encoding="utf-8")
        for hit in UNWANTED.finditer(text):
            line = text.count("\n", 0, hit.start()) + 1
            place = f"{path.relative_to(options.root)}:{line}: {' '.join(hit[0].split())}"
            hits.setdefault(room(path, options.root), []).append(place)
    counts = Counter({name: len(places) for name, places in hits.items()})
    if options.counts:
        for name in sorted(counts):
            print(f'    "{name}": {counts[name]},')
        return 0
    over = [name for name in sorted(counts) if counts[name] > ALLOWED.get(name, 0)]
    for name in over:
        print("\n".join(hits[name]))
    lower = [name for name in ALLOWED if counts[name] < ALLOWED[name]]
    for name in lower:
        print(f"ALLOWED[{name!r}] can go down to {counts[name]}")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
