"""Write how slow the job is into the run where people already look: W&B, MLflow, TensorBoard."""

from paceline_client.reporters.asking import Reporting, report
from paceline_client.reporters.kind import JobStanding

__all__ = ["JobStanding", "Reporting", "report"]
