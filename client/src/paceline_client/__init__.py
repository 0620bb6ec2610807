"""Send a training job's operation times to Paceline without slowing or breaking the training."""

from paceline_client.delivery import Delivery, DeliveryError, RetryPolicy, Share
from paceline_client.recorder import Outcome, Recorder

__all__ = ["Delivery", "DeliveryError", "Outcome", "Recorder", "RetryPolicy", "Share"]
