from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline_client.spool import Address, Spool, default_directory

HERE = Address("http://127.0.0.1:1", "llama", 3, "rank-0", run_id="17", restart=2)

CLAIM = """
import sys
from pathlib import Path
from paceline_client import Spool
spool = Spool(Path(sys.argv[1]))
with spool.claimed(spool.waiting()[0]) as claimed:
    print("claimed" if claimed else "taken", flush=True)
    sys.stdin.read()
"""


def test_a_share_waits_with_its_address_until_it_is_removed(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "new")
    path = spool.put(HERE, b"body\nof two lines")

    assert spool.waiting() == [path]
    with spool.claimed(path) as claimed:
        assert claimed == (HERE, b"body\nof two lines")
    spool.remove(path)
    assert spool.waiting() == []
    with spool.claimed(path) as claimed:
        assert claimed is None


def test_a_share_that_a_process_sends_is_free_again_when_that_process_is_killed(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path)
    path = spool.put(HERE, b"body")
    sender = subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", CLAIM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == "claimed\n"
        with spool.claimed(path) as claimed:
            assert claimed is None
        sender.kill()
        sender.wait()
    with spool.claimed(path) as claimed:
        assert claimed == (HERE, b"body")


def test_the_oldest_shares_make_room(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=3_000)
    paths = [spool.put(HERE, bytes(1_000)) for _ in range(4)]

    assert spool.waiting() == paths[2:]


def test_a_file_that_is_no_share_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "0.share").write_bytes(b"not JSON\nbody")
    with Spool(tmp_path).claimed(tmp_path / "0.share") as claimed:
        assert claimed is None


def test_an_impossible_folder_raises_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|directory"):
        Spool(tmp_path / "file").put(HERE, b"")


def test_the_folder_is_the_environments_or_one_of_this_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACELINE_SPOOL", "/scratch/spool")
    assert default_directory() == Path("/scratch/spool")
    monkeypatch.delenv("PACELINE_SPOOL")
    assert default_directory().name.startswith("paceline-spool-")
