"""The GPU that a verdict blames: never another one of the same worker."""

from __future__ import annotations

from dataclasses import replace

from app.analysis.diagnosis.locations import Where
from app.analysis.report.document import Report
from app.analysis.report.session_verdict import (
    BlamedGpu,
    GpuOfWorker,
    blamed_gpus,
    measures_of,
    verdict_of,
)
from app.analysis.trace.rank_metadata import MovedGpu, Whereabouts
from tests.support import reports


def of_eight(report: Report, ranks: tuple[int, ...]) -> Report:
    """Return a report of workers of eight GPUs on two hosts each, of which the first is slow."""
    rows, stages = len(report.workers.rank), len(report.workers.rank[0])
    by_rank = [[8 * (dp * stages + pp) for pp in range(stages)] for dp in range(rows)]
    known = range(8 * rows * stages)
    where = Where(workers=((1, 2),), ranks=ranks)
    return reports.changed(
        report,
        sizes__tp=4,
        sizes__cp=2,
        workers__rank=by_rank,
        hosts={rank: f"node-{rank // 4}" for rank in known},
        gpus={rank: str(rank % 4) for rank in known},
        causes=(replace(report.causes[0], where=where),),
    )


def test_a_rank_that_keeps_its_group_waiting_is_named_with_its_own_host_and_gpu() -> None:
    slow_worker = reports.slow_worker()
    first = 8 * (len(slow_worker.workers.rank[0]) + 2)
    report = of_eight(slow_worker, (first + 7,))
    [at] = blamed_gpus(report, report.causes[0].where)
    assert at == BlamedGpu(first + 7, f"node-{first // 4 + 1}", "3")
    assert at.words == f"node-{first // 4 + 1} GPU 3 (rank {first + 7})"
    assert GpuOfWorker(report)((1, 2)) == at
    assert GpuOfWorker(report)((0, 0)).gpu_words == "one of 8 GPUs"
    [cause] = verdict_of(report, {}).causes
    assert (cause.gpus, cause.host, cause.where) == ((at,), at.host, (at.host,))


def test_of_a_worker_of_eight_gpus_with_one_traced_none_is_named() -> None:
    report = of_eight(reports.slow_worker(), ())
    first = report.workers.rank[1][2]
    [at] = blamed_gpus(report, report.causes[0].where)
    words = f"node-{first // 4}: one of 8 GPUs (only rank {first} is traced)"
    assert (at.words, GpuOfWorker(report)((1, 2)).words) == (words, words)


def test_a_guessed_host_is_marked_and_a_gpu_is_the_one_of_its_uuid() -> None:
    slow_worker = reports.slow_worker()
    rank = slow_worker.rank_of((1, 2))
    uuid = "GPU-5a3f1c2e-0000-4000-8000-00000000000b"
    report = reports.changed(
        of_eight(slow_worker, (8 * (len(slow_worker.workers.rank[0]) + 2),)),
        sizes__tp=1,
        sizes__cp=1,
        workers__rank=slow_worker.workers.rank,
        causes=slow_worker.causes,
        hosts={rank: "llama-1"},
        gpus={rank: "3"},
        whereabouts=Whereabouts(
            guessed_hosts={"llama-1": "hostname"},
            pods={rank: "ml/llama-1"},
            gpu_uuids={rank: uuid},
            gpu_pci={rank: "00000000:3b:00.0"},
            local_ranks={rank: 3},
        ),
        moved=(MovedGpu(rank, uuid, "node-9", "2026-11-20T12:00:00+00:00"),),
    )
    verdict = verdict_of(report, {})
    [at] = verdict.causes[0].gpus
    assert at == BlamedGpu(
        rank, "llama-1", "3", guessed=True, uuid=uuid, pci="00000000:3b:00.0", pod="ml/llama-1",
        local_rank=3, moved_from="node-9",
    )  # fmt: skip
    assert at.words == (
        f"llama-1 (guessed) GPU 3 (GPU-5a3f1c2e…, rank {rank}, pod ml/llama-1, moved from node-9)"
    )
    assert (verdict.worst[0].host, verdict.worst[0].guessed) == ("llama-1", True)


def test_measures_have_the_paper_s_m_w_and_the_recorded_lengths() -> None:
    report = reports.slow_worker()
    lengths = {"7": [[[120, 100], [64]]], "8": [[[8], [32_768]]]}
    measures = measures_of(report, {"seq_length": 65_536, "sequence_lengths": lengths})
    assert report.m_w.published is not None
    assert (measures.m_w, measures.m_w_published) == (report.m_w.rem, report.m_w.published.rem)
    assert measures.context == 65_536
    assert measures.lengths == ((8, 1), (64, 3), (32_768, 1))
    assert measures_of(report, {}).lengths == ()
