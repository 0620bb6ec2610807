"""The ways to connect a training job, in the lines that the command line and the pages show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.analysis.trace.formats.registry import FOREIGN
from app.connecting.wheel import NAME

DEFAULT_JOB: Final = "my-job"


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be connected: the address of the server, and the job's name."""

    server: str
    job: str = DEFAULT_JOB


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to connect."""

    name: str  # as the command line takes it
    title: str  # as people call it
    # Its lines run in every process of the job, which then needs the environment of its launcher.
    in_job: bool
    # What to write or run, a text for each place, with ``{server}`` and ``{job}``.
    templates: tuple[str, ...]
    prose: str  # what it does

    def blocks(self, target: Target) -> tuple[str, ...]:
        """Return what to write or run for a job and a server."""
        return tuple(
            template.format(server=target.server, job=target.job) for template in self.templates
        )


# From the server itself; a job has its own PyTorch.
_INSTALL: Final = f"pip install {{server}}/client/{NAME}"
_TORCH: Final = """\
import paceline_client.torch as paceline

monitor = paceline.attach("{server}", "{job}", model=model, schedule=schedule, mesh=mesh)
...
monitor.step()          # once a step; ends by itself at exit"""
_MEGATRON: Final = """\
import paceline_client.torch as paceline

monitor = paceline.attach("{server}", "{job}", megatron_config=config, model=model)
...
monitor.step()          # once a step; ends by itself at exit"""
_NDTIMELINE: Final = """\
from paceline_client.ndtimeline import PacelineNDHandler

handlers.append(PacelineNDHandler("{server}", "{job}"))"""
_FILES: Final = """\
paceline convert kineto traces/*.json.gz --out session/
paceline upload session/ --server {server} --job {job} --wait"""
_CURL: Final = """\
curl --fail-with-body --data-binary @trace.ndjson.gz \\
  "{server}/api/v1/jobs/{job}/sessions\""""

_OTHER_KINDS: Final = tuple(name for name in FOREIGN if name != "kineto")

WAYS: Final[Mapping[str, Way]] = {
    way.name: way
    for way in (
        Way(
            name="torch",
            title="PyTorch",
            in_job=True,
            templates=(_INSTALL, _TORCH),
            prose="Works with torch pipelining, FSDP2 and DDP; sizes, hosts and layers are read "
            "from mesh and schedule. Off between sessions: one branch a hook. Nothing blocks, "
            "nothing raises.",
        ),
        Way(
            name="megatron",
            title="Megatron-Core",
            in_job=True,
            templates=(_INSTALL, _MEGATRON),
            prose="Timers, pipeline transfers, gradient and parameter sync, virtual stages. A hook "
            "that does not fit your version is left out with a warning that names it.",
        ),
        Way(
            name="ndtimeline",
            title="NDTimeline",
            in_job=True,
            templates=(_INSTALL, _NDTIMELINE),
            prose="Sends what NDTimeline already records; no second clock.",
        ),
        Way(
            name="files",
            title="Files",
            in_job=False,
            templates=(_FILES,),
            prose=f"Also {', '.join(_OTHER_KINDS[:-1])} and {_OTHER_KINDS[-1]}. What cannot be "
            "mapped is counted and said, with the setting that would record it.",
        ),
        Way(
            name="curl",
            title="curl",
            in_job=False,
            templates=(_CURL,),
            prose="NDJSON or Parquet, gzip or zstd. The answer names the session; its page fills "
            "in by itself.",
        ),
    )
}
