"""Validation of a whole job's specification, which is recognized by the key `global_batch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.analysis.planning.job.costs import GEMM_EFFICIENCY
from app.analysis.planning.job.spec import (
    GRADIENT_BYTES,
    AsItRuns,
    FixedParallelism,
    JobDevice,
    JobSpec,
    Recompute,
)
from app.analysis.planning.problem import divisors, powers_of_two
from app.analysis.planning.transformer import Accelerator, Transformer, find_device
from app.plans.specs.cluster import Count, WrittenDevice, WrittenTransformer, reading_of
from app.platform.validation import Flag, FromYaml, Name, Positive, Written, as_json, word

MOST_TYPES: Final = 8
# Maximum global batch, in sequences: an executed iteration's memory is proportional to the batch.
MOST_BATCH: Final = 16_384
MOST_LOSSES: Final = 8
MOST_GPUS: Final = 4096
# Maximum fixed microbatch, in sequences; the search itself tries 1 to 16.
MOST_MICROBATCH: Final = 1024

Size = Annotated[int, Field(ge=1, le=MOST_GPUS), FromYaml]


class WrittenJobTransformer(WrittenTransformer):
    """Decoder given by its shape; `microbatch` is the microbatch of its measured layers."""

    sequence: Annotated[Count | None, Field(description="Or next to global_batch")] = None  # type: ignore[assignment]
    microbatch: Count = 1


class WrittenJobModel(Written):
    """Model given by its shape, because a plan's sizes change the times of its layers."""

    transformer: WrittenJobTransformer

    @model_validator(mode="before")
    @classmethod
    def _by_shape(cls, value: object, info: ValidationInfo) -> object:
        reading_of(info).predicts = True
        if isinstance(value, Mapping) and not value.get("transformer"):
            message = "with global_batch the model is planned from its shape: give transformer"
            raise PydanticCustomError("conflict", message)
        return value


class WrittenJobDevice(WrittenDevice):
    """Nodes of one device type."""

    link_gbytes_per_s: Annotated[
        Positive | None,
        Field(description="What a GPU sends to others of its node; half of the catalogue's"),
    ] = None
    price_per_gpu_hour: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _predicted(cls, value: object) -> object:
        if isinstance(value, Mapping) and value.get("forward_ms") is not None:
            message = "with global_batch times are predicted: calibrate them by measured"
            raise PydanticCustomError("conflict", message)
        return value

    def job_device(self, in_node_gbytes_per_s: float | None) -> JobDevice:
        """Return the device type."""
        chip = Accelerator.known(self.type, self.peak_tflops, self.memory_gbytes_per_s)
        if "memory_bytes" in self.model_fields_set:
            chip = replace(chip, memory_bytes=self.memory_bytes)
        datasheet = find_device(self.type)
        link = self.link_gbytes_per_s or in_node_gbytes_per_s
        if link is None and datasheet is not None:
            link = datasheet.link_gbytes_per_s / 2
        efficiency = self.efficiency if "efficiency" in self.model_fields_set else GEMM_EFFICIENCY
        return JobDevice(chip, self.nodes, efficiency, link, self.price_per_gpu_hour)


class WrittenJobNetwork(Written):
    """Bandwidths of transfers; `inter_node_gbytes_per_s` is the bandwidth of a whole node."""

    intra_node_gbytes_per_s: Positive | None = None
    inter_node_gbytes_per_s: Positive | None = None


class WrittenParallelism(Written):
    """Parallel sizes that are fixed; missing sizes are searched."""

    tp: Size | None = None
    pp: Size | None = None
    dp: Size | None = None
    microbatch: Annotated[int | None, Field(ge=1, le=MOST_MICROBATCH), FromYaml] = None
    recompute: Annotated[
        Literal["none", "selective", "full"] | None,
        BeforeValidator(lambda value: None if value is None else word(value)),
    ] = None
    interleave: Size | None = None

    def fixed(self) -> FixedParallelism:
        """Return the fixed parallel sizes."""
        return FixedParallelism(
            self.tp,
            self.pp,
            self.dp,
            self.microbatch,
            None if self.recompute is None else Recompute(self.recompute),
            self.interleave,
        )


class WrittenRun(WrittenParallelism):
    """Job as it runs today: its measured time and its sizes, for comparison with the plan."""

    iteration_ms: Positive
    session: Annotated[Name | None, Field(description="That was measured")] = None

    def run(self) -> AsItRuns:
        """Return the running job."""
        return AsItRuns(self.iteration_ms, self.fixed(), self.session)


def _few_enough(devices: list[WrittenJobDevice]) -> list[WrittenJobDevice]:
    if sum(device.nodes * device.gpus_per_node for device in devices) > MOST_GPUS:
        raise PydanticCustomError("too_large", f"at most {MOST_GPUS} GPUs can be planned for")
    return devices


class WrittenJob(Written):
    """A specification of a whole job."""

    model: WrittenJobModel
    devices: Annotated[
        list[WrittenJobDevice],
        Field(min_length=1, max_length=MOST_TYPES),
        AfterValidator(_few_enough),
    ]
    global_batch: Annotated[int, Field(ge=1, le=MOST_BATCH), FromYaml]
    sequence: Annotated[
        Count | None, Field(description="Tokens; else of the model", validate_default=True)
    ] = None
    network: WrittenJobNetwork = WrittenJobNetwork()
    parallelism: WrittenParallelism = WrittenParallelism()
    allow_idle: Annotated[Flag, Field(description="Nodes may be left out")] = False
    shard_optimizer: Annotated[Flag, Field(description="ZeRO-1")] = True
    gradient_bytes: Annotated[Literal[2, 4], FromYaml] = GRADIENT_BYTES
    losses: Annotated[
        int, Field(ge=0, le=MOST_LOSSES, description="Lost nodes to plan for"), FromYaml
    ] = 1
    as_it_runs: WrittenRun | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: object, info: ValidationInfo) -> object:
        reading = reading_of(info)
        reading.document = as_json(value)
        return reading.document

    @field_validator("sequence")
    @classmethod
    def _sequence(cls, value: int | None, info: ValidationInfo) -> int | None:
        model = info.data.get("model")
        own = None if model is None else model.transformer.sequence
        if model is not None and value is None and own is None:
            raise PydanticCustomError("missing", "is missing")
        if value is not None and own is not None and value != own:
            raise PydanticCustomError("conflict", f"the model has sequence {own}")
        return value

    @model_validator(mode="after")
    def _check_consistency(self, info: ValidationInfo) -> WrittenJob:
        gpus_per_node = self.devices[0].gpus_per_node
        unequal = [
            (
                f"devices[{number}].gpus_per_node",
                f"all nodes of a job need as many GPUs: {gpus_per_node} would do",
            )
            for number, device in enumerate(self.devices)
            if device.gpus_per_node != gpus_per_node
        ]
        divided = [] if unequal else [*self._undividable(gpus_per_node)]
        faults = [*unequal, *self._bad_sizes(gpus_per_node), *divided, *self._bad_chunks()]
        faults += [] if divided else self._bad_batch()
        if self.as_it_runs is not None:
            faults += self._bad_sizes(gpus_per_node, self.as_it_runs, "as_it_runs")
        for path, message in faults:
            reading_of(info).refuse("conflict", message, path)
        return self

    def _bad_sizes(
        self, gpus_per_node: int, fixed: WrittenParallelism | None = None, path: str = "parallelism"
    ) -> Iterator[tuple[str, str]]:
        fixed = fixed or self.parallelism
        gpus = sum(device.nodes for device in self.devices) * gpus_per_node
        heads, layers = self.model.transformer.heads, self.model.transformer.layers
        tp, pp, dp = fixed.tp, fixed.pp, fixed.dp
        if tp is not None:
            fits = [
                n for n in powers_of_two(gpus_per_node) if gpus_per_node % n == 0 and heads % n == 0
            ]
            if tp not in fits:
                nearest = _nearest(fits, tp)
                why = "a TP group is a power of two that divides a node's"
                message = f"{why} {gpus_per_node} GPUs and {heads} heads: {nearest} would do"
                yield f"{path}.tp", message
        if pp is not None and pp > layers:
            yield f"{path}.pp", f"there are {layers} layers: {layers} would do"
        if tp is None or pp is None or dp is None or len(self.devices) > 1 or self.allow_idle:
            return
        if tp * pp * dp != gpus:
            rest, more = divmod(gpus, tp * pp)
            do = "" if more or not rest else f": dp {rest} would do"
            yield f"{path}.dp", f"tp {tp} × pp {pp} × dp {dp} are not the {gpus} GPUs{do}"

    def _undividable(self, gpus_per_node: int) -> Iterator[tuple[str, str]]:
        """Yield path and message of each fixed size that no division of the nodes has."""
        fixed, layers = self.parallelism, self.model.transformer.layers
        nodes, heads = sum(device.nodes for device in self.devices), self.model.transformer.heads
        degrees = [
            n for n in powers_of_two(gpus_per_node) if gpus_per_node % n == 0 and heads % n == 0
        ]
        if fixed.tp not in {None, *degrees} or (fixed.pp or 1) > layers:
            return  # reported by `_bad_sizes`
        degrees = degrees if fixed.tp is None else [fixed.tp]
        groups = nodes * gpus_per_node // min(degrees)
        for key, size in (("dp", fixed.dp), ("pp", fixed.pp)):
            if size is not None and size > groups:
                yield f"parallelism.{key}", f"there are {groups} TP groups: {groups} would do"
                return
        if len(self.devices) > 1 or self.allow_idle or None not in {fixed.tp, fixed.pp, fixed.dp}:
            return
        pairs = [
            (replicas * count, nodes // count * (gpus_per_node // tp) // replicas)
            for tp in degrees
            for count in divisors(nodes)
            for replicas in divisors(gpus_per_node // tp)
        ]
        pairs = [(dp, pp) for dp, pp in pairs if pp <= layers]
        fits = [
            division
            for division in pairs
            if fixed.dp in {None, division[0]} and fixed.pp in {None, division[1]}
        ]
        if not fits:
            place, key = (1, "pp") if fixed.dp is None else (0, "dp")
            own, other = (fixed.pp, fixed.dp) if place else (fixed.dp, fixed.pp)
            near = [division[place] for division in pairs if other in {None, division[1 - place]}]
            do = "" if not near or own is None else f": {_nearest(near, own)} would do"
            yield f"parallelism.{key}", f"{nodes} nodes are not divided into such pipelines{do}"

    def _bad_batch(self) -> Iterator[tuple[str, str]]:
        batch, dp, microbatch = self.global_batch, self.parallelism.dp, self.parallelism.microbatch
        if microbatch is not None and batch % microbatch:
            near = _nearest([n for n in divisors(batch) if n <= 2 * microbatch], microbatch)
            yield "parallelism.microbatch", f"does not divide {batch} sequences: {near} would do"
            return
        sizes = (microbatch or 1) * (dp or 1)
        if dp is not None and batch < sizes:
            yield "global_batch", f"each of {dp} pipelines needs a microbatch: {sizes} would do"
        elif dp is not None and len(self.devices) == 1 and batch % sizes:
            up = -(-batch // sizes) * sizes
            yield "global_batch", f"is not divisible by {sizes}: {up} would do"

    def _bad_chunks(self) -> Iterator[tuple[str, str]]:
        pp, chunks = self.parallelism.pp, self.parallelism.interleave
        layers, path = self.model.transformer.layers, "parallelism.interleave"
        if chunks is None or chunks == 1:
            return
        if pp == 1:
            yield path, "a single stage has one chunk: 1 would do"
        elif len(self.devices) > 1:
            yield path, "stages on several types run plain 1F1B: 1 would do"
        elif pp is None and not _chunked(layers, chunks):
            fits = [v for v in range(1, layers + 1) if v == 1 or _chunked(layers, v)]
            why = f"{layers} layers are no stages of {chunks} equal chunks"
            yield path, f"{why}: {_nearest(fits, chunks)} would do"
        elif pp is not None and layers % (pp * chunks):
            best = max(v for v in range(1, chunks) if v == 1 or not layers % (pp * v))
            yield path, f"{layers} layers are not {pp} × {chunks} equal chunks: {best} would do"

    def spec(self) -> JobSpec:
        """Return the planning problem."""
        written = self.model.transformer
        shape = written.model_copy(update={"sequence": self.sequence or written.sequence})
        transformer: Transformer = shape.transformer()
        return JobSpec(
            transformer=transformer,
            devices=tuple(
                device.job_device(self.network.intra_node_gbytes_per_s) for device in self.devices
            ),
            gpus_per_node=self.devices[0].gpus_per_node,
            global_batch=self.global_batch,
            inter_node_gbytes_per_s=self.network.inter_node_gbytes_per_s,
            fixed=self.parallelism.fixed(),
            allow_idle=self.allow_idle,
            shard_optimizer=self.shard_optimizer,
            gradient_bytes=self.gradient_bytes,
            losses=self.losses,
            as_it_runs=None if self.as_it_runs is None else self.as_it_runs.run(),
        )


def asks_for_job(value: object) -> bool:
    """Return whether a document specifies a whole job."""
    return isinstance(value, Mapping) and value.get("global_batch") is not None


def _chunked(layers: int, chunks: int) -> bool:
    """Return whether a pipeline of two or more stages can have this number of equal chunks."""
    return any(layers % (stages * chunks) == 0 for stages in range(2, layers + 1))


def _nearest(some: list[int], to: int) -> int:
    return min(some, key=lambda value: (abs(value - to), value))
