"""Lines and files in each room, and circles of imports: ``python scripts/structure.py``.

A room is a folder of the program. A circle is a set of files each of which imports, through the
others, itself; imports for the type checker count as well. Fails on a circle, and on a room of more
than fifteen files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import grimp

PACKAGES: Final = ("app", "workers")
MOST_FILES: Final = 15
# Folders whose lines are counted, with the depth at which their rooms stand.
COUNTED: Final = {
    **dict.fromkeys(PACKAGES, 3),
    **dict.fromkeys(("client", "frontend"), 2),
    **dict.fromkeys(("migrations", "tests", "benchmarks", "docs"), 1),
}
WRITTEN: Final = frozenset({".css", ".html", ".js", ".mako", ".md", ".py", ".toml", ".ts"})
# What others wrote, and what is built.
OTHERS: Final = frozenset({"vendor", "site"})
# Rooms that are still too full, with what they may hold meanwhile.
TOO_FULL: Final[dict[str, int]] = {}


def rooms(root: Path) -> dict[str, int]:
    """Return how many files each folder of the program has, the fullest first.

    Files that only make a folder a package do not count.
    """
    counts: dict[str, int] = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            if path.name != "__init__.py":
                room = path.parent.relative_to(root).as_posix()
                counts[room] = counts.get(room, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def lines(root: Path) -> dict[str, int]:
    """Return how many lines each room has, and each counted folder altogether."""
    counts: dict[str, int] = {}
    for folder, depth in COUNTED.items():
        for path in (root / folder).rglob("*"):
            parts = path.relative_to(root).parts
            if path.suffix in WRITTEN and not OTHERS.intersection(parts):
                count = path.read_bytes().count(b"\n")
                for counted in {folder, "/".join(parts[:-1][:depth])}:
                    counts[counted] = counts.get(counted, 0) + count
    return dict(sorted(counts.items()))


def circles(root: Path) -> list[list[str]]:
    """Return the modules of each circle of imports."""
    sys.path.insert(0, str(root))
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found: list[list[str]] = []
    seen: set[str] = set()
    for module in sorted(graph.modules):
        circle = graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
        if circle and module not in seen:
            seen |= circle | {module}
            found.append(sorted(circle | {module}))
    return found


def main() -> int:
    """Print all three, and return 1 where one of them is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--quiet", action="store_true", help="print what is wrong only")
    options = parser.parse_args()
    if not options.quiet:
        for room, count in lines(options.root).items():
            print(f"{count:7} lines {room}")
    full = False
    for room, count in rooms(options.root).items():
        most = TOO_FULL.get(room, MOST_FILES)
        full |= count > most
        if count > most or not options.quiet:
            print(f"{count:4} {room}{f': over {most} files' if count > most else ''}")
    found = circles(options.root)
    for circle in found:
        print(f"circle of imports: {' '.join(circle)}")
    if not options.quiet:
        print(f"circles of imports: {len(found)}")
    return int(full or bool(found))


if __name__ == "__main__":
    sys.exit(main())
