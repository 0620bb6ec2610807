"""Weights & Biases: metrics of the run's current step, and its summary."""

from __future__ import annotations

from typing import Any

from paceline_client.reporters.kind import PREFIX, JobStanding


class WandbReporter:
    """Writes into a run of W&B.

    Never commits a step: that is the training's, and its axis would move. What is written goes with
    the step that the training commits next.

    Parameters
    ----------
    run : wandb.Run, optional
        Without it the active one.
    """

    def __init__(self, run: Any = None) -> None:  # noqa: ANN401 - of a library that is optional
        if run is None:
            import wandb  # noqa: PLC0415 - optional

            run = wandb.run
        if run is None:
            message = "there is no active run: call wandb.init first"
            raise ValueError(message)
        self._run = run

    def write(self, standing: JobStanding) -> None:
        """Write how the job stands."""
        self._run.log({**standing.numbers(), f"{PREFIX}session": standing.session}, commit=False)
        self._run.summary.update(
            {f"{PREFIX}incident": standing.incident, f"{PREFIX}verdict": standing.sentence}
        )

    def close(self) -> None:
        """Leave the run to the training."""
