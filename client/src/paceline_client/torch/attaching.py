"""Attachment to a training job: find its layout, agree on its run, and install the hooks."""

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
from paceline_client.environment import Run, labels_of, machine_of, run_from_environment
from paceline_client.gpu import GpuMonitor, gpu_of, location_metadata
from paceline_client.pulse.sender import Destination
from paceline_client.sending import Relay
from paceline_client.spool import Spool
from paceline_client.torch.agreement import Agreement
from paceline_client.torch.instrumentation import INSTRUMENTATIONS
from paceline_client.torch.instrumentation.base import Job, Level, Undo
from paceline_client.torch.layout import (
    Layout,
    find_groups,
    find_layout,
    layers_of,
    stages_of,
    with_experts,
)
from paceline_client.torch.monitor import Monitor
from paceline_client.torch.pulse import RankPulse, RecordWhen
from paceline_client.torch.sessions import Sampling, Sender, producers, seconds
from paceline_client.torch.tap import SHARED, Tap
from paceline_client.torch.timelines import DeviceTimeline, HostTimeline
from paceline_client.version import VERSION

_log = logging.getLogger("paceline_client")

_ATTACHED: Final = itertools.count()
# From this number of ranks, one rank of each host sends for all ranks of the host.
_NODE_RELAY_FROM: Final = 16

LevelName = Literal["compute", "p2p", "all"]


def default_relay(world: int) -> Literal["rank", "node"]:
    """Return the default value of `relay` of `attach` for a job with `world` ranks."""
    has_local_ranks = {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= os.environ.keys()
    return "node" if has_local_ranks and world >= _NODE_RELAY_FROM else "rank"


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
        A schedule of `torch.distributed.pipelining`.
    mesh : DeviceMesh, optional
        The mesh of all ranks, with names of its dimensions.
    megatron_config, optional
        Megatron-Core's configuration of the model, after `initialize_model_parallel`.
    layout : Layout, optional
        The layout, if it is not that of schedule, mesh or Megatron-Core.
    groups : mapping, optional
        Process groups of ranks that share experts (``"ep"``) or sequences (``"cp"``), if neither
        mesh nor Megatron contains them.
    every : str or float or None
        Time between two sessions: ``"30min"``, or seconds. None records on request only.
    steps, warmup : int
        Number of steps of a session, and of the steps before it in which the hooks run and their
        operations are discarded.
    window : str or float or None
        Maximum duration of a periodic session: slow jobs record fewer steps, at least five. None
        for no limit.
    first_step : int
        Number of the current step, for a job resumed from a checkpoint.
    level : {"compute", "p2p", "all"}
        What is recorded. ``compute``: computations; ``p2p``: also transfers and data-parallel
        collectives; ``all``: also tensor-, context- and expert-parallel collectives.
    pulse : bool
        Whether a few numbers of each step are sent all the time, every ``PACELINE_PULSE_S`` seconds
        (5), by which the server detects a slow rank within seconds.
    record : {"auto", "ask"} or RecordBudget
        Whether the server may request a session when it detects a problem: within the default
        budget (2 % of the steps, one an hour), not at all, or within another budget.
    stacks : bool
        Whether ranks report their stack while no step ends: functions, files and lines of the
        training thread, never values, and the pending collectives of PyTorch's flight recorder.
    tensor_ranks : {"first", "all"}
        Which tensor- and context-parallel ranks of a worker are recorded.
    relay : {"rank", "node"}, optional
        Whether each rank sends its share, or the first rank of each host all shares of the host. By
        default the latter from 16 ranks on, if the launcher sets ``LOCAL_RANK`` and
        ``LOCAL_WORLD_SIZE``.
    layers : sequence of int, optional
        Number of layers of each pipeline stage, if they cannot be counted.
    labels : mapping, optional
        Labels of the job, such as team, model and importance; they replace those of the scheduler:
        owner, account and partition of Slurm, the namespace of Kubernetes.
    links : mapping, optional
        Links for the job's page, such as its run at W&B or its logs: URLs by their names.
    spool : path, optional
        Folder for shares that cannot be sent now; by default ``PACELINE_SPOOL``, else a temporary
        folder.
    buffer_operations : int
        Maximum number of operations in memory.
    retry : RetryPolicy, optional
        How long sending is tried before a share is left in the spool.

    Examples
    --------
    >>> monitor = attach("http://paceline:8765", "llama-70b", schedule=schedule, mesh=mesh)
    >>> for batch in loader:
    ...     train(batch)
    ...     monitor.step()
    """
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    tap = Tap(DeviceTimeline(torch.cuda) if on_gpu else HostTimeline())
    tap.step = first_step
    monitor = Monitor(tap)
    try:
        session_url(url, job)
        session_level = Level[level.upper()]
        is_megatron = megatron_config is not None
        rank, world = 0, 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        local_rank = int(os.environ.get("LOCAL_RANK") or 0)
        layout = layout or find_layout(
            rank, world, mesh=mesh, schedule=schedule, megatron=is_megatron
        )
        layout = with_experts(layout, groups)
        agreement, run_text = Agreement.of_job(rank, world, next(_ATTACHED), _new_run)
        run = Run(**json.loads(run_text))
        longest_s = seconds(window, "window")
        sampling = Sampling(seconds(every), steps, warmup, agreement.message_delay_s, longest_s)
        group_kinds = find_groups(mesh=mesh, megatron=is_megatron, given=groups)
        rank_pulse = None
        if pulse:
            to = Destination(url, job, run, rank, local_rank, machine_of().node, world)
            rank_pulse = RankPulse(tap, to, layout, record, stacks=stacks, gpu=_gpu_monitor())
        training = Job(tap, layout, model, schedule, megatron_config, rank, group_kinds)
        undo, left_out = _install_hooks(training, session_level, pulse=pulse)
        meta = _metadata(training, run, session_level, left_out, labels, links)
        if tensor_ranks == "all":
            meta["producers"] = producers(world)
        folder = Spool(Path(spool) if spool else None)
        relay = relay or default_relay(world)
        sender = Sender(
            url,
            job,
            run,
            rank,
            layout,
            meta,
            folder,
            hand_over=relay == "node" and local_rank != 0,
            retry=retry or RetryPolicy(),
            buffer_operations=buffer_operations,
            level=session_level,
        )
        _add_layers(agreement, sender, training, layers)
        host_relay = None
        if local_rank == 0:
            others = int(os.environ.get("LOCAL_WORLD_SIZE") or world) - 1
            host_relay = Relay(folder, url, others if relay == "node" else 0)
            host_relay.start()
        records = layout.first_of_cell or tensor_ranks == "all"
        monitor.begin(
            training, undo, sender, sampling, agreement, host_relay, rank_pulse, records=records
        )
    except Exception as error:  # noqa: BLE001 - the training continues
        _log.warning("this job is not recorded: %s", error, exc_info=error)
    return monitor


def _new_run() -> str:
    """Return a new run as JSON; all ranks use the run of rank 0.

    The run of the launcher does not identify a call of `attach`, because a process may attach
    several times.
    """
    return json.dumps(run_from_environment(once=True).document())


def _gpu_monitor() -> GpuMonitor | None:
    gpu = gpu_of(torch.cuda) if torch.cuda.is_initialized() else {}
    uuid, address = gpu.get("gpu_uuids", ""), gpu.get("gpu_pci", "")
    return GpuMonitor(uuid, address) if uuid or address else None


def _install_hooks(job: Job, level: Level, *, pulse: bool) -> tuple[list[Undo], list[str]]:
    undo: list[Undo] = []
    left_out: list[str] = []
    hooks = level
    if pulse and level is Level.P2P:
        # To distinguish computing from waits inside computations, the pulse needs hooks that
        # sessions of this level do not need.
        hooks = Level.ALL
        job.tap.hidden = SHARED
    for instrumentation in INSTRUMENTATIONS:
        if instrumentation.wanted(job):
            attached, missing = instrumentation.attach(job, level, hooks)
            undo += attached
            left_out += missing
    return undo, left_out


def _metadata(  # noqa: PLR0913, PLR0917 - the sources of a session's metadata
    job: Job,
    run: Run,
    level: Level,
    left_out: list[str],
    labels: Mapping[str, str] | None,
    links: Mapping[str, str] | None,
) -> dict[str, Any]:
    layout = job.layout
    meta: dict[str, Any] = {
        **layout.sizes(),
        "run_id": run.run_id,
        **location_metadata(job.rank, torch.cuda),
        "recorded_by": {
            "client": VERSION,
            "torch": str(torch.__version__),
            "level": level.name.lower(),
            "clock": job.tap.timeline.name,
        },
    }
    if job.megatron_config is None:
        # The client's hooks record only the waits for collectives inside computations; Megatron-
        # Core's timers record the whole collectives.
        meta["recorded_by"]["inside"] = "waits"
    if layout.ep > 1:
        meta["ep"] = layout.ep
    if all_labels := {**labels_of(), **(labels or {})}:
        meta["labels"] = all_labels
    if links:
        meta["links"] = dict(links)
    if left_out:
        meta["hooks_left_out"] = {str(job.rank): left_out}
    return meta


def _add_layers(
    agreement: Agreement, sender: Sender, job: Job, layers: Sequence[int] | None
) -> None:
    """Send the number of this stage's layers to rank 0, whose metadata contain all stages."""
    layout = sender.layout
    if layers is not None:
        sender.meta["layers"] = list(layers)
        return
    modules = [stage.submod for stage in stages_of(job.schedule)] or job.models()
    count = layers_of(modules) if modules else None
    if layout.dp_rank == 0 and layout.first_of_cell:
        agreement.put(f"layers/{layout.pp_rank}", str(count or 0))
    if sender.rank != 0:
        return
    if layout.pp == 1:
        if count:
            sender.meta["layers"] = [count]
        return

    def take(texts: list[str]) -> None:
        counts = [int(text) for text in texts]
        if all(counts):
            sender.meta["layers"] = counts

    agreement.collect([f"layers/{stage}" for stage in range(layout.pp)], take)
