"""The limit on open files of a process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource
from app.platform.processes import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
allow_open_files()
print(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE)))
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not let every process have more")
def test_as_many_as_the_system_allows() -> None:
    done = subprocess.run(  # noqa: S603 - the test's own
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [4096, 4096]
