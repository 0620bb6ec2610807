"""Send a training job's operation times to Paceline without slowing or breaking the training."""

from paceline_client.delivery import Delivery, RetryPolicy, Share
from paceline_client.environment import Run, run_from_environment
from paceline_client.exchange import DeliveryError, Fate
from paceline_client.planned_gc import PlannedGC
from paceline_client.recorder import Outcome, Recorder
from paceline_client.spool import Spool
from paceline_client.version import VERSION

__all__ = [
    "VERSION",
    "Delivery",
    "DeliveryError",
    "Fate",
    "Outcome",
    "PlannedGC",
    "Recorder",
    "RetryPolicy",
    "Run",
    "Share",
    "Spool",
    "run_from_environment",
]
__version__ = VERSION
