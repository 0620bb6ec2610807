"""Ways to connect a training job, for the command line and the pages; the client's wheel.

The wheel is built from the installed client, so that jobs can install it from the server.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path
from typing import Final

import paceline_client
from app.analysis.trace.formats.registry import FOREIGN

DEFAULT_JOB: Final = "my-job"
# Placeholder of a secret that the reader has to insert.
NO_SECRET: Final = "…"  # noqa: S105 - no secret


@dataclass(frozen=True, slots=True)
class Target:
    """Address of the server and name of the job to connect."""

    server: str
    job: str = DEFAULT_JOB

    @property
    def token_command(self) -> str:
        """Return the command that creates a token for this job only."""
        job = shlex.quote(self.job)
        return f"paceline token create {job} --scope ingest --job {job}"


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher of a job's processes."""

    name: str  # on the command line
    title: str  # display name
    # Lines to add, so that every process has the token of the job, with `NO_SECRET` in its place.
    template: str

    def block(self, target: Target, secret: str = NO_SECRET) -> str:
        """Return the lines to add; without a secret, the first one says how to create a token."""
        command = "" if secret != NO_SECRET else f"# {target.token_command}\n"
        return command + self.template.replace(NO_SECRET, secret)


LAUNCHERS: Final[Mapping[str, Launcher]] = {
    launcher.name: launcher
    for launcher in (
        Launcher(
            "torchrun",
            "torchrun",
            "export PACELINE_TOKEN=…          # on every host, where the server requires tokens\n"
            "torchrun --nproc-per-node=8 train.py",
        ),
        Launcher(
            "slurm",
            "Slurm",
            "export PACELINE_TOKEN=…          # in the batch script; srun passes it on\n"
            "srun --export=ALL python train.py",
        ),
        Launcher(
            "kubernetes",
            "Kubernetes",
            "# kubectl create secret generic paceline --from-literal=token=…\n"
            "env:\n"
            "  - name: PACELINE_TOKEN\n"
            "    valueFrom:\n"
            "      secretKeyRef: {name: paceline, key: token}",
        ),
    )
}


NAME: Final = f"paceline_client-{paceline_client.VERSION}-py3-none-any.whl"

_INFO: Final = f"paceline_client-{paceline_client.VERSION}.dist-info"
_KEPT: Final = ("METADATA", "WHEEL")
# Time of all files in the wheel, fixed so that equal content always gives an equal wheel.
_MADE_AT: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel (PEP 427): its name and content."""

    content: bytes
    sha256: str


@cache
def client_wheel() -> Wheel:
    """Return the pure Python wheel of the installed client."""
    package = Path(paceline_client.__file__).parent
    installed = distribution("paceline-client")
    files = {
        path.relative_to(package.parent).as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.suffix in {".py", ".typed"}
    }
    for name in _KEPT:
        files[f"{_INFO}/{name}"] = (installed.read_text(name) or "").encode()
    record = f"{_INFO}/RECORD"
    listed = []
    for name, body in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")
        listed.append(f"{name},sha256={digest},{len(body)}")
    files[record] = "".join(f"{line}\n" for line in [*listed, f"{record},,"]).encode()
    written = BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            archive.writestr(zipfile.ZipInfo(name, _MADE_AT), body, zipfile.ZIP_DEFLATED)
    content = written.getvalue()
    return Wheel(content, hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to connect a job."""

    name: str  # on the command line
    title: str  # display name
    # Whether the lines run in every process of the job, and therefore need a launcher's
    # environment.
    in_job: bool
    # Lines to write or run, one text for each file or shell, with the placeholders ``{server}`` and
    # ``{job}``.
    templates: tuple[str, ...]
    prose: str  # explanation

    def blocks(self, target: Target) -> tuple[str, ...]:
        """Return the lines to write or run for a job and a server."""
        return tuple(
            template.format(server=target.server, job=target.job) for template in self.templates
        )


# Installs the wheel that this server offers; PyTorch is installed by the job itself.
_INSTALL: Final = f"pip install {{server}}/client/{NAME}"
_STEP: Final = """\
...
monitor.step()          # once a step; ends by itself at exit"""
_TORCH: Final = f"""\
import paceline_client.torch as paceline

monitor = paceline.attach("{{server}}", "{{job}}", model=model)
{_STEP}"""
_PIPELINING: Final = f"""\
import paceline_client.torch as paceline

monitor = paceline.attach("{{server}}", "{{job}}", schedule=schedule, mesh=mesh)
{_STEP}"""
_LOOP: Final = f"""\
import paceline_client.torch as paceline

layout = paceline.Layout(dp=dp, pp=pp, dp_rank=dp_rank, pp_rank=pp_rank)
monitor = paceline.attach("{{server}}", "{{job}}", layout=layout)
...
with monitor.span("forward-compute", mb=mb):
    loss = model(x)
with monitor.span("backward-compute", mb=mb):
    loss.backward()
with monitor.span("grads-reduce-scatter"):
    reduce_gradients()
{_STEP}"""
_MEGATRON: Final = f"""\
import paceline_client.torch as paceline

monitor = paceline.attach("{{server}}", "{{job}}", megatron_config=config, model=model)
{_STEP}"""
_LIGHTNING: Final = """\
import paceline_client.torch as paceline
from pytorch_lightning import Callback   # or of lightning.pytorch, as the trainer


class Paceline(Callback):
    def on_train_start(self, trainer, module):
        self.monitor = paceline.attach("{server}", "{job}", model=trainer.strategy.model)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.monitor.step()


trainer.callbacks.append(Paceline())   # or Trainer(callbacks=[Paceline()])"""
_ACCELERATE: Final = """\
import paceline_client.torch as paceline

monitor = paceline.attach("{server}", "{job}", model=model)   # as `prepare` returns it
...
if accelerator.sync_gradients:
    monitor.step()      # once a step; ends by itself at exit"""
_TRANSFORMERS: Final = """\
import paceline_client.torch as paceline
from transformers import TrainerCallback


class Paceline(TrainerCallback):
    def on_train_begin(self, args, state, control, **others):
        self.monitor = paceline.attach(
            "{server}", "{job}", model=trainer.model_wrapped, first_step=state.global_step
        )

    def on_step_end(self, args, state, control, **others):
        self.monitor.step()


trainer.add_callback(Paceline())"""
_DEEPSPEED: Final = """\
import paceline_client.torch as paceline

monitor = paceline.attach("{server}", "{job}", model=engine)   # as `initialize` returns it
...
last = engine.is_gradient_accumulation_boundary()
engine.step()
if last:
    monitor.step()      # once a step; ends by itself at exit"""
_NDTIMELINE: Final = """\
from paceline_client.ndtimeline import PacelineNDHandler

handlers.append(PacelineNDHandler("{server}", "{job}"))"""
_FILES: Final = """\
paceline upload traces/ --server {server} --job {job} --wait"""
_CURL: Final = """\
curl --fail-with-body --data-binary @trace.ndjson.gz \\
  "{server}/api/v1/jobs/{job}/sessions\""""

_OTHER_KINDS: Final = tuple(name for name in FOREIGN if name != "kineto")

WAYS: Final[Mapping[str, Way]] = {
    way.name: way
    for way in (
        Way(
            name="ddp",
            title="PyTorch DDP",
            in_job=True,
            templates=(_INSTALL, _TORCH),
            prose="The model is the DistributedDataParallel. Between sessions a few numbers a step "
            "are sent. Nothing blocks, nothing raises.",
        ),
        Way(
            name="fsdp2",
            title="FSDP2",
            in_job=True,
            templates=(_INSTALL, _TORCH),
            prose="The model after fully_shard; with mesh= where its mesh has names. Collectives "
            "inside of computations are recorded as nested.",
        ),
        Way(
            name="pipelining",
            title="Torch pipelining",
            in_job=True,
            templates=(_INSTALL, _PIPELINING),
            prose="Every schedule of torch.distributed.pipelining, with FSDP2 and DDP inside of "
            "stages; sizes, hosts and layers are read from mesh and schedule.",
        ),
        Way(
            name="loop",
            title="A loop by hand",
            in_job=True,
            templates=(_INSTALL, _LOOP),
            prose="Name the operations yourself; optimizers and the garbage collector are "
            "recorded automatically. monitor.watch() takes asynchronous work.",
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
            name="lightning",
            title="PyTorch Lightning",
            in_job=True,
            templates=(_INSTALL, _LIGHTNING),
            prose="A callback, for any module; the strategy is a distributed one, such as ddp.",
        ),
        Way(
            name="accelerate",
            title="Accelerate",
            in_job=True,
            templates=(_INSTALL, _ACCELERATE),
            prose="After prepare; a step is one of the optimizer, whatever is accumulated.",
        ),
        Way(
            name="transformers",
            title="Hugging Face Trainer",
            in_job=True,
            templates=(_INSTALL, _TRANSFORMERS),
            prose="A callback that is added before train(); the wrapped model is the trainer's, "
            "not the callback's.",
        ),
        Way(
            name="deepspeed",
            title="DeepSpeed",
            in_job=True,
            templates=(_INSTALL, _DEEPSPEED),
            prose="The model is the engine; a step is one of the optimizer.",
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
            prose="The folder of a profiler's files, as it is, or an archive of it: of kineto, "
            f"{', '.join(_OTHER_KINDS[:-1])} or {_OTHER_KINDS[-1]}. What cannot be mapped is "
            "counted and said, with the setting that would record it.",
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
