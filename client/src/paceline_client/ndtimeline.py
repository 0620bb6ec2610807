"""A handler that sends the records of vescale's NDTimeline; based on its public source code.

NDTimeline runs its handlers in one process per host, so the handler can be pickled and starts
nothing before its first call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paceline_client.delivery import Share
from paceline_client.environment import Run, machine_of
from paceline_client.recorder import Recorder
from paceline_client.spool import Spool

try:
    from vescale.ndtimeline.handlers import NDHandler
except ImportError:  # only its interface is needed
    NDHandler = object

_log = logging.getLogger("paceline_client")

# Name of the metric that ends a chunk of steps, and name of the tag with the step.
_END_OF_CHUNK: Final = "special"
_STEP_KEY: Final = "_inner_global_step"
_NS_PER_S: Final = 1_000_000_000


class PacelineNDHandler(NDHandler):  # type: ignore[misc]
    """Sends NDTimeline's records to Paceline, in sessions of `steps` steps.

    `url` is the address of Paceline. `meta` adds metadata that NDTimeline does not have: ``cp``,
    ``vpp``, ``hosts``, ``layers``, ``labels``. Sessions begin at multiples of `steps`.
    """

    def __init__(
        self, url: str, job: str, meta: Mapping[str, Any] | None = None, steps: int = 50
    ) -> None:
        if NDHandler is not object:
            # By default the base class ignores the metric that ends a chunk.
            super().__init__(ignore_metrics=[])
        self._url = url
        self._job = job
        self._meta = dict(meta or {})
        self._steps = steps
        self._recorders: dict[tuple[int, int], Recorder] = {}
        self._newest: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_recorders": {}, "_newest": {}}

    def call_impl(  # noqa: PLR0913, PLR0917 - NDTimeline's interface
        self,
        metric_name: str,
        elapsed: float,
        recent_elapsed_raw_parts: Sequence[float],
        recent_since_start_raw_parts: Sequence[float],
        tags: Sequence[Mapping[str, Any]],
        step_range: range,
        world_info: Any,  # noqa: ANN401 - vescale's, without types
        extra: Mapping[str, Any],
    ) -> None:
        """Record a metric of one rank: durations and start times in seconds, and their tags."""
        del elapsed, extra
        try:
            topology = world_info.topo_info
            if metric_name == _END_OF_CHUNK:
                self._finish_before(topology.rank)
                return
            steps = _steps(tags, step_range, len(recent_elapsed_raw_parts))
            for step, start_s, duration_s, tag in zip(
                steps, recent_since_start_raw_parts, recent_elapsed_raw_parts, tags, strict=True
            ):
                self._newest[topology.rank] = max(step, self._newest.get(topology.rank, 0))
                self._recorder(world_info, step).op(
                    topology.rank,
                    metric_name,
                    round(start_s * _NS_PER_S),
                    round(duration_s * _NS_PER_S),
                    step=step,
                    dp=topology.dp_rank,
                    pp=topology.pp_rank,
                    mb=tag.get("mb"),
                    mc=tag.get("mc"),
                    tp=topology.tp_rank if topology.tp_size > 1 else None,
                )
        except Exception as error:  # noqa: BLE001 - must not end NDTimeline's process
            _log.warning("a record of %s is left out: %r", metric_name, error)

    def close(self) -> None:
        """Send all sessions."""
        for recorder in self._recorders.values():
            recorder.finish()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until finished sessions are sent or stored in the spool."""
        for recorder in self._recorders.values():
            recorder.wait(timeout_s)

    def _recorder(self, world_info: Any, step: int) -> Recorder:  # noqa: ANN401 - as above
        topology = world_info.topo_info
        first = step - step % self._steps
        key = (topology.rank, first)
        if key not in self._recorders:
            training = world_info.training_info
            sizes = {
                "dp": topology.dp_size,
                "pp": topology.pp_size,
                "tp": topology.tp_size,
                "world": topology.world_size,
                **machine_of(hostname=topology.ip).document(topology.rank),
            }
            run = Run(f"{training.trial_id}/{training.run_id}")
            self._recorders[key] = Recorder(
                self._url,
                self._job,
                {**sizes, **self._meta},
                share=Share(first + 1, f"rank-{topology.rank}", run),
                spool=Spool(),
                # Chunks would not help here: NDTimeline passes one metric after the other, so no
                # step is complete before the session ends.
                chunk_every_s=None,
            )
        return self._recorders[key]

    def _finish_before(self, rank: int) -> None:
        """Send the sessions of a rank whose last step has been recorded."""
        newest = self._newest.get(rank, -1)
        for (of_rank, first), recorder in list(self._recorders.items()):
            if of_rank == rank and newest + 1 >= first + self._steps:
                recorder.finish()
                if newest >= first + 2 * self._steps:
                    del self._recorders[of_rank, first]


def _steps(tags: Sequence[Mapping[str, Any]], step_range: range, count: int) -> list[int]:
    """Return the step of each duration: from its tag, or evenly divided over the range of steps."""
    own = [int(tag[_STEP_KEY]) for tag in tags if _STEP_KEY in tag]
    if own:
        if len(own) != count:
            message = "some parts have a step and others have none"
            raise ValueError(message)
        return own
    if not step_range or count % len(step_range):
        message = f"{count} parts cannot be divided evenly over {len(step_range)} steps"
        raise ValueError(message)
    each = count // len(step_range)
    return [step for step in step_range for _ in range(each)]
