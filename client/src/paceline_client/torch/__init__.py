"""Attach Paceline to a PyTorch or Megatron-Core job: see `attach`."""

from paceline_client.pulse.requests import RecordBudget
from paceline_client.torch.attaching import attach
from paceline_client.torch.layout import Layout
from paceline_client.torch.monitor import Monitor

__all__ = ["Layout", "Monitor", "RecordBudget", "attach"]
