"""The kinds of reporters: one file and a line each."""

from __future__ import annotations

from typing import Final

from paceline_client.reporters.kind import MakeReporter
from paceline_client.reporters.mlflow_run import MlflowReporter
from paceline_client.reporters.tensorboard_events import TensorBoardReporter
from paceline_client.reporters.wandb_run import WandbReporter

REPORTERS: Final[dict[str, MakeReporter]] = {
    "mlflow": MlflowReporter,
    "tensorboard": TensorBoardReporter,
    "wandb": WandbReporter,
}
