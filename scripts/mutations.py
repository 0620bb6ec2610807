"""Print how many of a random sample of faults the tests catch: ``python -m scripts.mutations``.

Each fault changes one operator or constant of a module below `app/`, in a copy of the checkout:
``<`` becomes ``<=``, ``and`` becomes ``or``, 3 becomes 4. One of the tests that run its line has to
fail. Two checkouts with the same seed show whether tests that were deleted were needed; the share
of a sample of 100 has a standard error of four points.
"""

from __future__ import annotations

import argparse
import ast
import copy
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coverage import CoverageData

# Operators and their replacements.
OPERATORS: Final[Mapping[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# Most tests that are run for a fault, each of another file as far as possible.
MOST_TESTS: Final = 24
# A fault whose tests take longer is caught: it made a loop endless.
TIMEOUT_S: Final = 180


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of one node of a module, by the node's place in `ast.walk`."""

    module: Path  # relative to the checkout
    line: int
    place: int


def faults(root: Path) -> Iterator[Fault]:
    """Yield every possible fault of the modules below `app/`."""
    for path in sorted((root / "app").rglob("*.py")):
        for place, node in enumerate(ast.walk(ast.parse(path.read_text()))):
            if _changed(node) is not None and hasattr(node, "lineno"):
                yield Fault(path.relative_to(root), node.lineno, place)


def mutated(source: str, fault: Fault) -> tuple[str, str]:
    """Return the source with the fault, and the changed expression for people."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for place, node in enumerate(ast.walk(tree)):
        if place == fault.place:
            new = _changed(node)
            if new is None:
                break
            ast.copy_location(new, node)
            shown = f"{ast.unparse(node)}  ->  {ast.unparse(new)}"
            for name, value in ast.iter_fields(parents[node]):
                if value is node:
                    setattr(parents[node], name, new)
                elif isinstance(value, list) and node in value:
                    value[value.index(node)] = new
            return ast.unparse(tree), shown
    raise ValueError(f"{fault} is no place of a fault")


def _changed(node: ast.AST) -> ast.AST | None:
    """Return a changed copy of a node; None for nodes that are not changed."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[operator, *_]) if type(operator) in OPERATORS:
            new.ops[0] = OPERATORS[type(operator)]()  # type: ignore[call-overload]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in OPERATORS:
            new.op = OPERATORS[type(operator)]()  # type: ignore[assignment]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool() as value):
            new.value = not value
        case ast.Constant(value=int() as value):
            new.value = value + 1
        case _:
            return None
    return new


def tests_of(data: CoverageData, root: Path, fault: Fault) -> list[str]:
    """Return the tests that run a fault's line; for a line run at import, those of its module."""
    lines = data.contexts_by_lineno(str(root / fault.module))
    contexts = set(lines.get(fault.line, ()))
    if contexts == {""}:
        contexts.update(*lines.values())
    # A name with "::" in its parameters cannot be selected.
    names = {name.partition("|")[0] for name in contexts if name and name.count("::") == 1}
    by_file: dict[str, list[str]] = {}
    for name in sorted(names):
        by_file.setdefault(name.partition("::")[0], []).append(name)
    ordered = [(place, name) for each in by_file.values() for place, name in enumerate(each)]
    # Unit tests first: they fail sooner.
    ordered.sort(key=lambda pair: (pair[0], "unit/" not in pair[1]))
    return [name for _, name in ordered[:MOST_TESTS]]


def _pytest(root: Path, *arguments: str, timeout_s: float | None = None) -> int | None:
    """Return pytest's exit status in a checkout; None after the timeout."""
    paths = os.pathsep.join((str(root), str(root / "client" / "src")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    try:
        return subprocess.run(  # noqa: S603 - pytest, on tests of the checkout
            command,
            cwd=root,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            timeout=timeout_s,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each fault that no test catches, and the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", default="2", help="of the run that notes who runs what")
    parser.add_argument("tests", nargs="*", default=["tests/unit", "tests/golden"])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        archive = subprocess.run(  # noqa: S603 - git, on the caller's folder
            ["git", "-C", options.root, "archive", "HEAD"],  # noqa: S607
            check=True,
            capture_output=True,
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(root, filter="data")
        covering = ("--cov=app", "--cov-context=test", "--cov-report=", "--cov-fail-under=0")
        _pytest(root, "-m", "not slow", "-n", options.processes, *covering, *options.tests)
        data = CoverageData(str(root / ".coverage"))
        data.read()
        drawn = random.Random(options.seed).sample(list(faults(root)), options.sample)  # noqa: S311
        caught = 0
        for fault in drawn:
            path = root / fault.module
            source = path.read_text()
            changed, shown = mutated(source, fault)
            tests = tests_of(data, root, fault)
            path.write_text(changed)
            status = _pytest(root, "-x", *tests, timeout_s=TIMEOUT_S) if tests else 0
            path.write_text(source)
            if status == 0:
                why = f"{len(tests)} tests pass" if tests else "no test runs it"
                print(f"{fault.module}:{fault.line}: {shown}: {why}", flush=True)
            else:
                caught += 1
    print(f"{caught} of {options.sample} faults caught")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
