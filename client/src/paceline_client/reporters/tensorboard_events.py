"""TensorBoard: scalars and texts whose step is the session."""

from __future__ import annotations

from typing import Any

from paceline_client.reporters.kind import PREFIX, JobStanding


class TensorBoardReporter:
    """Writes events by a `SummaryWriter`.

    Parameters
    ----------
    writer : SummaryWriter or path
        That of the training, which stays its to close; or a folder for events of their own.
    """

    def __init__(self, writer: Any = None) -> None:  # noqa: ANN401 - of a library that is optional
        if writer is None:
            message = "name the SummaryWriter of the training, or a folder"
            raise ValueError(message)
        self._owns = not hasattr(writer, "add_scalar")
        if self._owns:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - optional

            writer = SummaryWriter(str(writer))
        self._writer = writer

    def write(self, standing: JobStanding) -> None:
        """Write how the job stands."""
        for name, value in standing.numbers().items():
            self._writer.add_scalar(name, value, standing.session)
        self._writer.add_text(f"{PREFIX}incident", standing.incident, standing.session)
        self._writer.add_text(f"{PREFIX}verdict", standing.sentence, standing.session)
        self._writer.flush()

    def close(self) -> None:
        """Close what is not the training's."""
        if self._owns:
            self._writer.close()
