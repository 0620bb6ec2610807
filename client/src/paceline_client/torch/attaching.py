"""Attach to a training job: find its layout, agree on its run, and install the hooks."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch

from paceline_client.delivery import RetryPolicy, session_url
from paceline_client.machine import labels_of, machine_of
from paceline_client.pulse.hardware import Hardware
from paceline_client.pulse.sending import Destination
from paceline_client.runs import Run, run_from_environment
from paceline_client.spool import Spool
from paceline_client.torch.agreement import Agreement
from paceline_client.torch.device_timeline import DeviceTimeline
from paceline_client.torch.groups import find_groups, with_experts
from paceline_client.torch.host_timeline import HostTimeline
from paceline_client.torch.layout import Layout, find_layout, layers_of, stages_of
from paceline_client.torch.monitor import Monitor
from paceline_client.torch.pulse import RankPulse, RecordWhen
from paceline_client.torch.relay import Relay
from paceline_client.torch.sampling import Sampling, seconds
from paceline_client.torch.session import Sender
from paceline_client.torch.tap import SHARED, Tap, Timeline
from paceline_client.torch.targets.kind import Job, Level, Undo
from paceline_client.torch.targets.registry import TARGETS
from paceline_client.version import VERSION
from paceline_client.whereabouts import gpu_of, whereabouts

_log = logging.getLogger("paceline_client")

_ATTACHED: Final = itertools.count()
# From this number on, one rank of a host sends for all of them.
_NODES_FROM_RANKS: Final = 16

LevelName = Literal["compute", "p2p", "all"]


def default_relay(world: int) -> Literal["rank", "node"]:
    """Return who sends the shares of `world` ranks."""
    told = {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= os.environ.keys()
    return "node" if told and world >= _NODES_FROM_RANKS else "rank"


def attach(  # noqa: PLR0913 - the first two are the call; the others have defaults
    url: str,
    job: str,
    *,
    model: Any = None,
    schedule: Any = None,
    mesh: Any = None,
    megatron_config: Any = None,
    layout: Layout | None = None,
    groups: Mapping[str, Any] | None = None,
    every: str | float | None = "30min",
    steps: int = 50,
    window: str | float | None = "3min",
    warmup: int = 2,
    first_step: int = 0,
    level: LevelName = "p2p",
    pulse: bool = True,
    record: RecordWhen = "auto",
    stacks: bool = True,
    tensor_ranks: Literal["first", "all"] = "first",
    relay: Literal["rank", "node"] | None = None,
    layers: Sequence[int] | None = None,
    labels: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    spool: Path | str | None = None,
    buffer_operations: int = 400_000,
    retry: RetryPolicy | None = None,
) -> Monitor:
    """Attach to this process's part of a training job; call it on every rank.

    Never raises into the training: parts that cannot be recorded are left out, with a warning of
    the logger ``paceline_client``. Call `step` of the returned monitor once per step.

    Parameters
    ----------
    url : str
        Address of Paceline; the environment's ``PACELINE_TOKEN`` is its token.
    job : str
        Name of the job.
    model : torch.nn.Module or list of them, optional
        This rank's part of the model, for DDP, FSDP2, loops without a pipeline, and its layers.
    schedule, optional
        Of `torch.distributed.pipelining`.
    mesh : DeviceMesh, optional
        Of all ranks, with names of its dimensions.
    megatron_config, optional
        Megatron-Core's configuration of the model, after `initialize_model_parallel`.
    layout : Layout, optional
        Instead of that of schedule, mesh or Megatron.
    groups : mapping, optional
        Process groups of ranks that share experts (``"ep"``) or sequences (``"cp"``), if neither
        mesh nor Megatron contains them.
    every : str or float or None
        Time between two sessions: ``"30min"``, or seconds. None records on request only.
    steps, warmup : int
        Steps of a session; steps before it in which hooks run and nothing is kept.
    window : str or float or None
        The longest time of a periodic session: of slow steps fewer are recorded, at least five.
        None for no such limit.
    first_step : int
        Number of the current step, as after a checkpoint.
    level : {"compute", "p2p", "all"}
        Computations; also transfers and data-parallel collectives; also tensor-, context- and
        expert-parallel collectives.
    pulse : bool
        Whether a few numbers a step are sent all the time, each ``PACELINE_PULSE_S`` seconds (5),
        from which a server notices a slow rank within seconds.
    record : {"auto", "ask"} or RecordBudget
        Whether a server that notices something may have a session recorded: within the usual
        budget (2 % of the steps, one an hour), not at all, or within another budget.
    stacks : bool
        Whether ranks say what they are in while no step ends: functions, files and lines of the
        training thread, never values, and the collectives that PyTorch's recorder holds as pending.
    tensor_ranks : {"first", "all"}
        Which tensor- and context-parallel ranks of a worker are recorded.
    relay : {"rank", "node"}, optional
        Whether each rank sends its share, or the first rank of each host all of them. By default
        the latter from 16 ranks on, where the launcher says which ranks share a host
        (``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``).
    layers : sequence of int, optional
        Layers of each pipeline stage, if they cannot be counted.
    labels : mapping, optional
        Such as team, model and importance; they stand before those that a scheduler gives: owner,
        account and partition of Slurm, the namespace of Kubernetes.
    links : mapping, optional
        Where else the job can be looked at, as its run at W&B or its logs: addresses of the web by
        what they are called. The job's page has them.
    spool : path, optional
        Folder for shares that cannot be sent now; by default ``PACELINE_SPOOL``, else a temporary
        folder.
    buffer_operations : int
        The most operations in memory.
    retry : RetryPolicy, optional
        How long to try to send before a share is left in the spool.

    Examples
    --------
    >>> monitor = attach("http://paceline:8765", "llama-70b", schedule=schedule, mesh=mesh)
    >>> for batch in loader:
    ...     train(batch)
    ...     monitor.step()
    """
    tap = Tap(_timeline())
    tap.step = first_step
    monitor = Monitor(tap)
    try:
        session_url(url, job)
        wanted = Level[level.upper()]
        rank, world = _rank_and_world()
        place = layout or find_layout(
            rank, world, mesh=mesh, schedule=schedule, megatron=megatron_config is not None
        )
        place = with_experts(place, groups)
        agreement, said = Agreement.of_job(rank, world, next(_ATTACHED), _new_run)
        run = Run(**json.loads(said))
        longest_s = seconds(window, "window")
        sampling = Sampling(seconds(every), steps, warmup, agreement.heard_within_s, longest_s)
        known = find_groups(mesh=mesh, megatron=megatron_config is not None, given=groups)
        beating = None
        if pulse:
            where = Destination(url, job, run, rank, _local_rank(), machine_of().node, world)
            beating = RankPulse(tap, where, place, record, stacks=stacks, hardware=_hardware())
        target_job = Job(tap, place, model, schedule, megatron_config, rank, known)
        undo, left_out = _attach_targets(target_job, wanted, pulse=pulse)
        meta = _metadata(
            rank,
            place,
            run,
            wanted,
            left_out,
            labels,
            links,
            tap.timeline.name,
            # Megatron-Core's own collectives are recorded while they go on.
            only_waits=megatron_config is None,
        )
        if tensor_ranks == "all":
            meta["producers"] = [f"rank-{other}" for other in range(world)]
        folder = Spool(Path(spool) if spool else None)
        local_rank = _local_rank()
        relay = relay or default_relay(world)
        sender = Sender(
            url,
            job,
            run,
            rank,
            place,
            meta,
            folder,
            hand_over=relay == "node" and local_rank != 0,
            retry=retry or RetryPolicy(),
            buffer_operations=buffer_operations,
            level=wanted,
        )
        _say_layers(agreement, sender, target_job, layers)
        host_relay = None
        if local_rank == 0:
            others = int(os.environ.get("LOCAL_WORLD_SIZE") or world) - 1
            host_relay = Relay(folder, url, others if relay == "node" else 0)
            host_relay.start()
        records = place.first_of_cell or tensor_ranks == "all"
        monitor.begin(
            target_job, undo, sender, sampling, agreement, host_relay, beating, records=records
        )
    except Exception as error:  # noqa: BLE001 - the training continues
        _log.warning("this job is not recorded: %s", error, exc_info=error)
    return monitor


def _timeline() -> Timeline:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return DeviceTimeline(torch.cuda)
    return HostTimeline()


def _rank_and_world() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _new_run() -> str:
    """Return a run that no other call of `attach` returns; other ranks take that of rank 0.

    Launchers name processes; one process may attach several times.
    """
    return json.dumps(run_from_environment(once=True).document())


def _hardware() -> Hardware | None:
    gpu = gpu_of(torch.cuda) if torch.cuda.is_initialized() else {}
    uuid, address = gpu.get("gpu_uuids", ""), gpu.get("gpu_pci", "")
    return Hardware(uuid, address) if uuid or address else None


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or 0)


def _attach_targets(job: Job, level: Level, *, pulse: bool) -> tuple[list[Undo], list[str]]:
    undo: list[Undo] = []
    left_out: list[str] = []
    hooks = level
    if pulse and level is Level.P2P:
        # What is waited for inside of computations is not computing, whether sessions have it or
        # not.
        hooks = Level.ALL
        job.tap.hidden = SHARED
    for target in TARGETS:
        if target.wanted(job):
            attached, missing = target.attach(job, level, hooks)
            undo += attached
            left_out += missing
    return undo, left_out


def _metadata(  # noqa: PLR0913, PLR0917 - the sources of a session's metadata
    rank: int,
    layout: Layout,
    run: Run,
    level: Level,
    left_out: list[str],
    labels: Mapping[str, str] | None,
    links: Mapping[str, str] | None,
    clock: str,
    *,
    only_waits: bool,
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        **layout.sizes(),
        "run_id": run.run_id,
        **whereabouts(rank, torch.cuda),
        "recorded_by": {
            "client": VERSION,
            "torch": str(torch.__version__),
            "level": level.name.lower(),
            "clock": clock,
        },
    }
    if only_waits:
        meta["recorded_by"]["inside"] = "waits"
    if layout.ep > 1:
        meta["ep"] = layout.ep
    if said := {**labels_of(), **(labels or {})}:
        meta["labels"] = said
    if links:
        meta["links"] = dict(links)
    if left_out:
        meta["hooks_left_out"] = {str(rank): left_out}
    return meta


def _say_layers(
    agreement: Agreement, sender: Sender, job: Job, layers: Sequence[int] | None
) -> None:
    """Send the number of this stage's layers to rank 0, whose share has those of all stages."""
    place = sender.layout
    if layers is not None:
        sender.meta["layers"] = list(layers)
        return
    modules = [stage.submod for stage in stages_of(job.schedule)] or job.models()
    count = layers_of(modules) if modules else None
    if place.dp_rank == 0 and place.first_of_cell:
        agreement.put(f"layers/{place.pp_rank}", str(count or 0))
    if sender.rank != 0:
        return
    if place.pp == 1:
        if count:
            sender.meta["layers"] = [count]
        return

    def take(texts: list[str]) -> None:
        counts = [int(text) for text in texts]
        if all(counts):
            sender.meta["layers"] = counts

    agreement.collect([f"layers/{stage}" for stage in range(place.pp)], take)
