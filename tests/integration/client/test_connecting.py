"""The code that `paceline connect` prints, run in a small job of each framework.

The code for Megatron-Core runs in the examples and the real jobs.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import textwrap
from typing import TYPE_CHECKING, Any, Final

import pytest

from app.jobs.connect import WAYS, Target
from paceline_client.spool import Spool
from tests.conftest import skip_or_fail
from tests.integration.client.conftest import NOWHERE, Trained, environment
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import missing, torch_python
from tests.support.nightly import every_night

if TYPE_CHECKING:
    from pathlib import Path

# Enough steps for the first periodic window to end: a second, some steps, and the window's 50.
_STEPS: Final = 220
_BEGIN: Final = f"""
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn

STEPS = {_STEPS}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def batches():
    for _ in range(STEPS):
        time.sleep(0.008)
        yield torch.ones(4, 8)


"""
_OPTIMIZER: Final = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
_STEP: Final = "loss = model(x).square().mean()\nloss.backward()\n"
_UPDATE: Final = "optimizer.step()\noptimizer.zero_grad()\n"


def loop(before: str, lines: str, step: str) -> str:
    """Return a script with the printed lines around and in its training loop."""
    attach, _, rest = lines.partition("...\n")
    inside = step + rest.replace("...\n", "")
    return (
        f"{before}{attach}\nfor mb, x in enumerate(batches()):\n{textwrap.indent(inside, '    ')}"
    )


def ddp(lines: str) -> str:
    wrap = "model = nn.parallel.DistributedDataParallel(model)\n" + _OPTIMIZER
    return loop(_BEGIN + wrap, lines, _STEP + _UPDATE)


def fsdp2(lines: str) -> str:
    wrap = "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n" + _OPTIMIZER
    return loop(_BEGIN + wrap, lines, _STEP + _UPDATE)


def by_hand(lines: str) -> str:
    names = (
        "dp, pp, dp_rank, pp_rank = 1, 1, 0, 0\n"
        "whole = model\n"
        "model = lambda x: whole(x).square().mean()\n"
        "def reduce_gradients():\n"
        "    for parameter in whole.parameters():\n"
        "        dist.all_reduce(parameter.grad)\n"
    )
    optimizer = _OPTIMIZER.replace("model", "whole")
    # The printed operations replace those of the loop, whose optimizer step comes first.
    attach, _, rest = lines.partition("...\n")
    operations, _, end = rest.partition("...\n")
    return loop(_BEGIN + names + optimizer, f"{attach}...\n{operations}{_UPDATE}{end}", "mb = 0\n")


def pipelining(lines: str) -> str:
    stage = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("pp",))
stage = PipelineStage(model, 0, 1, torch.device("cpu"), group=mesh.get_group())
schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
"""
    step = "schedule.step(x, target=torch.zeros(4, 8))\n"
    return loop(_BEGIN + _OPTIMIZER + stage, lines, step + _UPDATE)


def lightning(lines: str) -> str:
    return f"""{_BEGIN}
dist.destroy_process_group()
from pytorch_lightning import LightningModule, Trainer

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index):
        return self.model(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

trainer = Trainer(accelerator="cpu", strategy="ddp", devices=1, max_epochs=1, logger=False,
                  enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
{lines}
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS
    def __getitem__(self, index):
        time.sleep(0.008)
        return (torch.ones(8),)
trainer.fit(Module(), torch.utils.data.DataLoader(Slow(), 1))
"""


def accelerate(lines: str) -> str:
    prepare = f"""
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
{_OPTIMIZER}model, optimizer = accelerator.prepare(model, optimizer)
STEPS *= 2
"""
    step = (
        "with accelerator.accumulate(model):\n"
        "    accelerator.backward(model(x).square().mean())\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    begin = _BEGIN.replace("time.sleep(0.008)", "time.sleep(0.004)")
    return loop(begin + prepare, lines, step)


def transformers(lines: str) -> str:
    return f"""{_BEGIN}
from transformers import Trainer, TrainingArguments

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = model
    def forward(self, x):
        return {{"loss": self.layers(x).square().mean()}}

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS
    def __getitem__(self, index):
        time.sleep(0.008)
        return {{"x": torch.ones(8)}}

trainer = Trainer(
    Model(),
    TrainingArguments(
        output_dir=os.environ["PACELINE_SPOOL"], per_device_train_batch_size=1, max_steps=STEPS,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
    ),
    train_dataset=Slow(),
)
{lines}
trainer.train()
"""


def deepspeed(lines: str) -> str:
    initialize = """
import deepspeed
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    },
)
"""
    # The printed lines contain the step of the engine.
    step = "engine.backward(engine(x).square().mean())\n"
    return loop(_BEGIN + initialize, lines, step)


_SCRIPTS: Final[dict[str, tuple[str, Any]]] = {
    "ddp": ("torch", ddp),
    "fsdp2": ("torch", fsdp2),
    "loop": ("torch", by_hand),
    "pipelining": ("torch", pipelining),
    "lightning": ("pytorch_lightning", lightning),
    "accelerate": ("accelerate", accelerate),
    "transformers": ("transformers", transformers),
    "deepspeed": ("deepspeed", deepspeed),
}


# By day a wrapped module and a hand-written loop; trainers take half a minute each to import.
_BY_DAY: Final = ("ddp", "loop")
_BY_NIGHT: Final = tuple(_SCRIPTS.keys() - set(_BY_DAY))


@pytest.mark.parametrize("name", [*_BY_DAY, *every_night(*sorted(_BY_NIGHT))])
def test_the_lines_record_forwards_backwards_and_optimizers(name: str, tmp_path: Path) -> None:
    package, script = _SCRIPTS[name]
    reason = missing(Framework.TORCH)
    if reason is None and importlib.util.find_spec(package) is None:
        reason = f"{package} is not installed"
    if reason is not None:
        skip_or_fail(reason)
    lines = WAYS[name].blocks(Target(NOWHERE, "llama-70b"))[-1]
    (tmp_path / "train.py").write_text(script(lines))
    (tmp_path / "job").mkdir()
    done = subprocess.run(  # noqa: S603 - the lines are ours
        [torch_python(), str(tmp_path / "train.py")],
        env=environment() | {"PACELINE_SPOOL": str(tmp_path / "job" / "spool")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "paceline: attached to job llama-70b" in done.stderr
    assert "is not recorded" not in done.stderr
    trained = Trained(tmp_path / "job", done.returncode, done.stderr)
    rows = [row for _, lines in chunks(trained.spool) for row in lines]
    seen = {row["op"] for row in rows}
    assert {"forward-compute", "backward-compute", "optimizer"} <= seen, seen
    assert len({row["step"] for row in rows}) == 50


def chunks(spool: Spool) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return the number and the operation count of each spooled chunk."""
    found = []
    for path in spool.waiting():
        with spool.claimed(path) as claimed:
            assert claimed is not None
            lines = gzip.decompress(claimed[1]).splitlines()[1:]
            found.append((claimed[0].number, [json.loads(line) for line in lines]))
    return found
