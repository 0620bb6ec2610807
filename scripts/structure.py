"""Print how large the program is and how it hangs together: ``python scripts/structure.py``.

One row for each folder directly below `app/` (for `app/analysis`, one for each of its folders) and
for each other package, and one for all of them:

files, lines
    Python files that hold code, and their lines.
defs
    Functions and methods.
private
    Functions whose names begin with one underscore.
once
    Those of them that their own file calls exactly once and uses nowhere else: candidates to stand
    where they are called. Callbacks and routes, which are named but not called, do not count.
short
    Modules of under 100 lines that exactly one other module imports: candidates to join it.
depth
    Folders between the package and its deepest file.

Fails on a circle of imports among modules (imports within functions and for the type checker count)
and on files that lie deeper than allowed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self

import grimp

PACKAGES: Final = ("app", "workers", "client/src/paceline_client", "migrations")
# Between these, circles are looked for; alembic imports the migrations by their paths.
IMPORTED: Final = ("app", "workers")
# Folders between the package and a file: three, and one more below `app/analysis`.
MOST_FOLDERS: Final = 3
SHORT_LINES: Final = 100


@dataclass(frozen=True, slots=True)
class Size:
    """The counts of a row."""

    files: int = 0
    lines: int = 0
    defs: int = 0
    private: int = 0
    once: int = 0
    short: int = 0
    depth: int = 0

    def __add__(self, other: Self) -> Size:
        return Size(
            self.files + other.files,
            self.lines + other.lines,
            self.defs + other.defs,
            self.private + other.private,
            self.once + other.once,
            self.short + other.short,
            max(self.depth, other.depth),
        )


def sizes(root: Path, importers: Counter[str]) -> dict[str, Size]:
    """Return the counts of each row.

    Parameters
    ----------
    importers : Counter
        How many modules import a module, by its name.
    """
    rows: dict[str, Size] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text()
            tree = ast.parse(text)
            if not tree.body:
                continue
            folders = path.relative_to(root / package).parts[:-1]
            shown = folders[: 2 if folders[:1] == ("analysis",) else 1]
            row = "/".join((Path(package).name, *shown))
            defs, private, once = _functions(tree)
            lines = text.count("\n")
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            short = lines < SHORT_LINES and importers[module] == 1
            size = Size(1, lines, defs, private, once, int(short), len(folders))
            rows[row] = rows.get(row, Size()) + size
    return dict(sorted(rows.items()))


def _functions(tree: ast.Module) -> tuple[int, int, int]:
    """Return the numbers of functions, of private ones, and of those of them called once."""
    used: Counter[str] = Counter()
    called: Counter[str] = Counter()
    names: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                used[name] += 1
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                called[name] += 1
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.append(name)
    private = [name for name in names if name.startswith("_") and not name.startswith("__")]
    once = sum(used[name] == called[name] == 1 for name in private)
    return len(names), len(private), once


def too_deep(root: Path) -> list[Path]:
    """Return the files that lie deeper than allowed."""
    return [
        path
        for path in sorted((root / "app").rglob("*.py"))
        if len(path.relative_to(root / "app").parts) - 1
        > MOST_FOLDERS + (path.relative_to(root / "app").parts[0] == "analysis")
    ]


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return the modules of each circle of imports."""
    found: list[list[str]] = []
    seen: set[str] = set()
    for module in sorted(graph.modules):
        circle = graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
        if circle and module not in seen:
            seen |= circle | {module}
            found.append(sorted(circle | {module}))
    return found


def main() -> int:
    """Print the table, circles and files that lie too deep; return 1 where there are any."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--quiet", action="store_true", help="print only what is wrong")
    options = parser.parse_args()
    sys.path.insert(0, str(options.root))
    graph = grimp.build_graph(*IMPORTED, cache_dir=None)
    if not options.quiet:
        importers = Counter(
            {
                module: len(graph.find_modules_that_directly_import(module))
                for module in graph.modules
            }
        )
        rows = sizes(options.root, importers)
        rows["all"] = sum(rows.values(), Size())
        names = [field.name for field in fields(Size)]
        print(f"{'':28}" + "".join(f"{name:>9}" for name in names))
        for row, size in rows.items():
            print(f"{row:28}" + "".join(f"{getattr(size, name):9}" for name in names))
    found = circles(graph)
    for circle in found:
        print(f"circle of imports: {' '.join(circle)}")
    deep = too_deep(options.root)
    for path in deep:
        print(f"deeper than allowed: {path.relative_to(options.root)}")
    if not options.quiet:
        print(f"circles of imports: {len(found)}")
    return int(bool(deep or found))


if __name__ == "__main__":
    sys.exit(main())
