"""Hooks on Megatron-Core: computations by timers, transfers by requests, collectives by buckets."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final

import torch

from paceline_client.torch.instrumentation.base import (
    Function,
    Hook,
    Instrumentation,
    Job,
    Level,
    Undo,
)
from paceline_client.torch.tap import BACKWARD, FORWARD, GRADIENTS, PARAMETERS, Tap

_SCHEDULES: Final = "megatron.core.pipeline_parallel.schedules"
_P2P: Final = "megatron.core.pipeline_parallel.p2p_communication"
_BUCKETS: Final = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup"
_OF_TENSOR: Final = {
    "tensor_send_prev": "backward-send",
    "tensor_recv_prev": "forward-recv",
    "tensor_send_next": "forward-send",
    "tensor_recv_next": "backward-recv",
}
_OF_REQUEST: Final = {name.removeprefix("tensor_"): op for name, op in _OF_TENSOR.items()}
# Collectives at the end of a step that do not reduce buckets.
_OF_TIMER: Final = {
    "non-tensor-parallel-grads-all-reduce": "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce": "embedding-grads-all-reduce",
}
# The arguments of a step whose product is the step's number of tokens.
_SIZES: Final = ("num_microbatches", "micro_batch_size", "seq_length")
# Maximum of stored forward passes without a backward pass, since evaluations have none.
_MOST_FORWARDS: Final = 4096


class _Current:
    """The microbatch and the model chunk of the current computation.

    Forward passes have both as arguments. A backward pass belongs to the oldest forward pass
    without a backward pass, of the chunk in the schedule's table.
    """

    def __init__(self) -> None:
        self._table: list[tuple[int, int]] | None = None
        self._backwards = 0
        self._waiting: dict[int, deque[int | None]] = {}
        self.mb: int | None = None
        self.mc: int | None = None

    def begins(self, table: list[tuple[int, int]]) -> None:
        """Store the order of microbatches and chunks in an interleaved step."""
        self._table = table
        self._backwards = 0
        self._waiting = {}

    def forward(self, mb: int | None, mc: int | None) -> None:
        """Begin a forward pass."""
        self._waiting.setdefault(mc or 0, deque(maxlen=_MOST_FORWARDS)).append(mb)
        self.mb, self.mc = mb, mc

    def backward(self, chunks: int) -> None:
        """Begin a backward pass."""
        self.mb, self.mc = None, None
        if chunks > 1:
            if self._table is None or self._backwards >= len(self._table):
                return
            self.mc = chunks - 1 - self._table[self._backwards][1]
            self._backwards += 1
        waiting = self._waiting.get(self.mc or 0)
        if waiting:
            self.mb = waiting.popleft()


def _trains(tap: Tap) -> bool:
    # Evaluation steps run without gradients.
    return tap.on and bool(torch.is_grad_enabled())


def _forward_step(job: Job, original: Function) -> Function:
    def forward_step(*args: Any, **kwargs: Any) -> Any:
        if _trains(job.tap):
            current = job.shared(_Current)
            current.forward(kwargs.get("current_microbatch"), kwargs.get("vp_stage"))
        return original(*args, **kwargs)

    return forward_step


def _backward_step(job: Job, original: Function) -> Function:
    def backward_step(*args: Any, **kwargs: Any) -> Any:
        if _trains(job.tap):
            job.shared(_Current).backward(job.layout.vpp)
        return original(*args, **kwargs)

    return backward_step


def _schedule_table(job: Job, original: Function) -> Function:
    def get_schedule_table(*args: Any, **kwargs: Any) -> Any:
        table = original(*args, **kwargs)
        if _trains(job.tap):
            job.shared(_Current).begins(list(table))
        return table

    return get_schedule_table


def _passes(job: Job, original: Function) -> Function:
    """Count the tokens of a replica's step from its arguments, unless lengths vary."""

    def forward_backward(*args: Any, **kwargs: Any) -> Any:
        varies = getattr(job.megatron_config, "variable_seq_lengths", False)
        if job.tap.on and not varies and not kwargs.get("forward_only"):
            sizes = [size for name in _SIZES if isinstance(size := kwargs.get(name), int)]
            if len(sizes) == len(_SIZES):
                job.tap.tokens += math.prod(sizes)
        return original(*args, **kwargs)

    return forward_backward


class _Timer:
    """Records an operation, and calls the job's own timer of the same name if it exists."""

    def __init__(self, tap: Tap, current: _Current, name: str, original: Any) -> None:
        self._tap = tap
        self._current = current
        self._original = original
        self._op = name if name in {FORWARD, BACKWARD} else _OF_TIMER.get(name)
        self._computes = name in {FORWARD, BACKWARD}
        self._start: Any = None
        self._begun = False
        self._skips = False

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the timer."""
        if self._original is not None:
            self._original.start(*args, **kwargs)
        tap = self._tap
        if self._op is not None and _trains(tap):
            mb = self._current.mb if self._computes else None
            self._start = tap.begins(self._op, mb)
            self._begun = True
            tap.depth += self._computes
            if self._computes and self._start is None and not tap.skips:
                tap.skips = self._skips = True

    def stop(self, *args: Any, **kwargs: Any) -> None:
        """Stop the timer."""
        tap = self._tap
        if self._begun and self._op is not None:
            self._begun = False
            start, self._start = self._start, None
            tap.depth -= self._computes
            if self._skips:
                tap.skips = self._skips = False
            current = self._current
            mb, mc = (current.mb, current.mc) if self._computes else (None, None)
            if tap.on:
                tap.ends(self._op, start, mb, mc)
        if self._original is not None:
            self._original.stop(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Timers:
    """Replaces `megatron.core.timers.Timers`, and calls the job's own timers."""

    def __init__(self, tap: Tap, current: _Current, original: Any) -> None:
        self._tap = tap
        self._current = current
        self._original = original
        self._timers: dict[str, _Timer] = {}

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        original = None if self._original is None else self._original(name, *args, **kwargs)
        timer = self._timers.get(name)
        if timer is None:
            timer = self._timers[name] = _Timer(self._tap, self._current, name, original)
        # The job's timer may be another object than before, depending on its log level.
        timer._original = original
        return timer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _requests(job: Job, original: Function) -> Function:
    """Record each transfer of a call, from its start to its completion."""

    def p2p_ops(**kwargs: Any) -> Any:
        tap = job.tap
        if not tap.on:
            return original(**kwargs)
        start = tap.now() if tap.sink is not None else None
        requests = original(**kwargs)
        if isinstance(requests, dict):
            return {
                name: tap.watch(_OF_REQUEST[name], request, start)
                for name, request in requests.items()
            }
        ops = [op for name, op in _OF_TENSOR.items() if kwargs.get(name) is not None]
        if len(ops) == len(requests):
            return [
                tap.watch(op, request, start) for op, request in zip(ops, requests, strict=True)
            ]
        if len(requests) == 1:
            # For coalesced transfers there is a single work.
            for op in ops:
                requests = [tap.watch(op, requests[0], start)]
        return requests

    return p2p_ops


def _start(op: str, handle: str, job: Job, original: Function) -> Function:
    """Record the collective of a group of buckets: its call, or until its handle completes."""

    def start_sync(buckets: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        if not tap.on or getattr(buckets, handle) is not None:
            return original(buckets, *args, **kwargs)
        start = tap.begins(op)
        value = original(buckets, *args, **kwargs)
        work = getattr(buckets, handle)
        buckets.paceline_nested = tap.depth > 0
        if work is None:
            tap.ends(op, start)
        elif not buckets.paceline_nested:
            setattr(buckets, handle, tap.watch(op, work, start))
        return value

    return start_sync


def _finish(op: str, handle: str, job: Job, original: Function) -> Function:
    """Record the wait for a collective that began inside a computation."""

    def finish_sync(buckets: Any, *args: Any, **kwargs: Any) -> Any:
        nested = getattr(buckets, "paceline_nested", False) and getattr(buckets, handle) is not None
        if not job.tap.on or not nested:
            return original(buckets, *args, **kwargs)
        with job.tap.span(op):
            return original(buckets, *args, **kwargs)

    return finish_sync


class _Reductions:
    """Counts the gradient reductions that hooks have recorded."""

    seen = 0


def _counted(job: Job, wrapped: Function) -> Function:
    def counting(*args: Any, **kwargs: Any) -> Any:
        job.shared(_Reductions).seen += 1
        return wrapped(*args, **kwargs)

    return counting


def _finalized(job: Job, finalize: Function) -> Function:
    """Record a function of the job that reduces all gradients at once."""

    def finalize_model_grads(*args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        if not tap.on:
            return finalize(*args, **kwargs)
        before, start = job.shared(_Reductions).seen, tap.begins(GRADIENTS)
        value = finalize(*args, **kwargs)
        if job.shared(_Reductions).seen == before:
            tap.ends(GRADIENTS, start)
        return value

    return finalize_model_grads


def _install(job: Job, level: Level) -> Undo:
    """Install the timers, and record the job's function that finalizes gradients."""
    config = job.megatron_config
    timers, finalize = config.timers, config.finalize_model_grads_func
    config.timers = _Timers(job.tap, job.shared(_Current), timers)
    if finalize is not None and level >= Level.P2P:
        config.finalize_model_grads_func = _finalized(job, finalize)

    def undo() -> None:
        config.timers = timers
        config.finalize_model_grads_func = finalize

    return undo


MEGATRON: Final = Instrumentation(
    "megatron",
    "Megatron-Core",
    wanted=lambda job: job.megatron_config is not None,
    hooks=(
        *(
            Hook(f"{_SCHEDULES}:forward_backward_{name}", (), Level.COMPUTE, _passes)
            for name in (
                "no_pipelining",
                "pipelining_without_interleaving",
                "pipelining_with_interleaving",
            )
        ),
        Hook(
            f"{_SCHEDULES}:forward_step",
            ("forward_step_func", "data_iterator", "model", "num_microbatches"),
            Level.COMPUTE,
            _forward_step,
        ),
        Hook(
            f"{_SCHEDULES}:backward_step",
            ("input_tensor", "output_tensor", "output_tensor_grad"),
            Level.COMPUTE,
            _backward_step,
        ),
        Hook(
            f"{_SCHEDULES}:get_schedule_table",
            ("num_microbatches", "num_model_chunks"),
            Level.COMPUTE,
            _schedule_table,
        ),
        Hook(f"{_P2P}:_p2p_ops", tuple(_OF_TENSOR), Level.P2P, _requests),
        Hook(f"{_P2P}:_batched_p2p_ops", tuple(_OF_TENSOR), Level.P2P, _requests),
        Hook(
            f"{_BUCKETS}.start_grad_sync",
            ("self",),
            Level.P2P,
            lambda job, original: _counted(
                job, _start(GRADIENTS, "grad_reduce_handle", job, original)
            ),
        ),
        Hook(
            f"{_BUCKETS}.finish_grad_sync",
            ("self",),
            Level.P2P,
            lambda job, original: _counted(
                job, _finish(GRADIENTS, "grad_reduce_handle", job, original)
            ),
        ),
        Hook(
            f"{_BUCKETS}.start_param_sync",
            ("self",),
            Level.P2P,
            lambda job, original: _start(PARAMETERS, "param_gather_handle", job, original),
        ),
        Hook(
            f"{_BUCKETS}.finish_param_sync",
            ("self",),
            Level.P2P,
            lambda job, original: _finish(PARAMETERS, "param_gather_handle", job, original),
        ),
    ),
    install=_install,
)


_MAPPINGS: Final = "megatron.core.tensor_parallel.mappings"
_OF_FUNCTION: Final = {
    "_reduce": "tp-all-reduce",
    "_gather_along_last_dim": "tp-all-gather",
    "_gather_along_first_dim": "tp-all-gather",
    "_reduce_scatter_along_first_dim": "tp-reduce-scatter",
}


def _collective(op: str, job: Job, original: Function) -> Function:
    def collective(input_: Any, *args: Any, **kwargs: Any) -> Any:
        if not job.tap.on:
            return original(input_, *args, **kwargs)
        with job.tap.span(op):
            return original(input_, *args, **kwargs)

    return collective


def _hook(function: str, op: str) -> Hook:
    return Hook(
        f"{_MAPPINGS}:{function}",
        ("input_", "group"),
        Level.ALL,
        lambda job, original: _collective(op, job, original),
    )


TENSOR_PARALLEL: Final = Instrumentation(
    "tensor-parallel",
    "Megatron-Core's tensor parallelism",
    wanted=lambda job: job.megatron_config is not None and job.layout.tp > 1,
    hooks=tuple(_hook(function, op) for function, op in _OF_FUNCTION.items()),
)
