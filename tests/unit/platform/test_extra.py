"""The object store's client is an optional extra, which other installations do not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.bootstrap import object_store
from app.errors import StartupError
from app.platform.settings import Settings

WITHOUT = """
import sys
from app.bootstrap import build
from app.platform.settings import Settings
import app.run.application, workers.child
container = build(Settings(database_url="postgresql://unknown@127.0.0.1:1/nothing"))
assert container.objects is None
print("obstore" in sys.modules)
"""


@pytest.mark.slow
def test_it_is_imported_only_where_a_store_is_configured() -> None:
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_where_it_is_not_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "app.platform.s3", raising=False)
    with pytest.raises(StartupError, match="needs the extra `s3`"):
        object_store(Settings(blob_url="s3://bucket/prefix"))
