from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from app.analysis.compiled import forget_older

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
from typing import NamedTuple

import numpy as np

from app.analysis.compiled import compiled


class {name}(NamedTuple):
    values: np.ndarray


@compiled
def total(table):
    return table.values.sum()


print(total({name}(np.ones(3))))
"""


def test_lists_that_are_older_than_their_source_go_and_no_others(tmp_path: Path) -> None:
    source = tmp_path / "loops.py"
    names = ("loops.a-1.py311.nbi", "loops.b-9.py311.nbi", "other.a-1.py311.nbi", "loops.a.1.nbc")
    for path in (source, *(tmp_path / name for name in names)):
        path.touch()
    os.utime(source, ns=(10**18, 10**18))
    for name, age in zip(names, (-1, 1, -1, -1), strict=True):
        os.utime(tmp_path / name, ns=(10**18 + age, 10**18 + age))

    forget_older(tmp_path, source)

    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"loops.py", *names[1:]}


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    forget_older(tmp_path / "none", tmp_path / "neither.py")

    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_table_may_get_another_name(tmp_path: Path) -> None:
    source = tmp_path / "loops.py"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    for name in ("Before", "After"):
        source.write_text(MODULE.format(name=name))
        done = subprocess.run(
            [sys.executable, "-c", "import loops"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "3.0\n"
    assert len(list(tmp_path.glob("kept/*/*.nbi"))) == 1
