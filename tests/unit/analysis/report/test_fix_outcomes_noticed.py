"""Replaced workers are noticed when their machine left the job, not when ranks were renumbered."""

from __future__ import annotations

from app.analysis.report.fix_outcomes import noticed_fixes
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.rank_metadata import Whereabouts
from tests.support import reports

SIZES = Sizes(dp=3, pp=4, tp=2)


def replaced(before: SessionMeta, after: SessionMeta) -> bool:
    return any(
        "worker" in fix.action for fix in noticed_fixes(reports.slow_worker(), before, after)
    )


def meta(
    host: str, gpu: str, uuid: str | None = None, *, other: str | None = None, guessed: bool = False
) -> SessionMeta:
    """Return metadata with the slow worker's machine, and the GPU of another rank."""
    report = reports.slow_worker()
    slow = report.rank_of(report.causes[0].where.workers[0])
    uuids = {rank: name for rank, name in ((slow, uuid), (0, other)) if name is not None}
    guesses = {host: "hostname"} if guessed else {}
    where = Whereabouts(gpu_uuids=uuids, guessed_hosts=guesses)
    return SessionMeta(SIZES, hosts={slow: host}, gpus={slow: gpu}, whereabouts=where)


def test_another_host_or_gpu_is_a_replacement() -> None:
    assert replaced(meta("node-7", "3"), meta("node-8", "3"))
    assert replaced(meta("node-7", "3"), meta("node-7", "4"))
    assert replaced(meta("node-7", "3", "GPU-a"), meta("node-7", "3", "GPU-b"))
    assert not replaced(meta("node-7", "3"), meta("node-7", "3"))


def test_a_machine_that_another_rank_has_now_was_not_replaced() -> None:
    before = meta("node-7", "3", "GPU-a", other="GPU-b")
    assert not replaced(before, meta("node-8", "3", "GPU-b", other="GPU-a"))
    assert replaced(before, meta("node-8", "3", "GPU-b", other="GPU-c"))


def test_a_renamed_pod_and_a_renumbered_gpu_are_no_replacement() -> None:
    before = meta("llama-1", "3", "GPU-a", guessed=True)
    assert not replaced(before, meta("llama-2", "0", "GPU-a", guessed=True))
    assert not replaced(meta("llama-1", "3", guessed=True), meta("llama-2", "3", guessed=True))
