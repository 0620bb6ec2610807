"""Validation of the parts of a specification: model, device types and network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.analysis.planning.spec import BACKWARD_PER_FORWARD, DeviceType, LayerTimes, Network
from app.analysis.planning.spec import Layer as SpecLayer
from app.analysis.planning.transformer import (
    EFFICIENCY,
    Accelerator,
    Attention,
    Measured,
    Transformer,
)
from app.errors import Fault
from app.platform.validation import (
    Flag,
    FromYaml,
    Name,
    NotNegative,
    Positive,
    Written,
    as_json,
    few,
)

# Function from a profile's name to the profile's document.
ProfileReader = Callable[[str], object]


@dataclass(slots=True)
class Reading:
    """Context of a pydantic validation: earlier fields, against which later fields are checked."""

    read_profile: ProfileReader | None = None
    document: object = None  # the specification as JSON types
    faults: list[Fault] = field(default_factory=list)  # faults of several fields together
    layers: int = 0  # layers of the model; 0 if they cannot be counted
    predicts: bool = False  # whether a transformer's times are predicted for each device type
    speeds: dict[str, float] = field(default_factory=dict)  # by device type

    def refuse(self, code: str, message: str, path: str) -> None:
        """Add a fault that concerns several fields together."""
        self.faults.append(Fault(code, message, column=path))


def reading_of(info: ValidationInfo) -> Reading:
    """Return the context of a validation."""
    context = info.context
    assert isinstance(context, Reading)  # noqa: S101 - specifications are read through `parse_spec`
    return context


MOST_LAYERS: Final = 1000
MOST_MEASURED: Final = 10_000
MOST_NODES: Final = 4096
MOST_GPUS_PER_NODE: Final = 64
EVERY_LAYER: Final = "*"


def backward_of(forward_ms: float) -> float:
    """Return the assumed backward time, ms, if only the forward pass was measured."""
    return forward_ms * BACKWARD_PER_FORWARD


class WrittenLayer(Written):
    """Layer with its sizes and its times for one microbatch on the profiled device."""

    forward_ms: Positive
    backward_ms: Annotated[NotNegative | None, Field(description="3 × forward_ms")] = None
    parameter_bytes: NotNegative = 0.0
    output_bytes: NotNegative = 0.0
    stored_activation_bytes: Annotated[NotNegative | None, Field(description="output_bytes")] = None

    def layer(self) -> SpecLayer:
        """Return the layer with defaults for missing fields."""
        stored, backward_ms = self.stored_activation_bytes, self.backward_ms
        return SpecLayer(
            forward_ms=self.forward_ms,
            backward_ms=backward_of(self.forward_ms) if backward_ms is None else backward_ms,
            parameter_bytes=self.parameter_bytes,
            output_bytes=self.output_bytes,
            stored_activation_bytes=self.output_bytes if stored is None else stored,
        )


class ProfiledLayer(Written):
    """Layer as Oobleck's profiler writes it; `mem_required`: sizes of parameters and output."""

    forward: Positive
    backward: NotNegative | None = None
    mem_required: Annotated[list[NotNegative] | None, Field(min_length=1, max_length=2)] = None

    def layer(self) -> SpecLayer:
        """Return the layer with defaults for missing fields."""
        backward = backward_of(self.forward) if self.backward is None else self.backward
        parameters, output = [*(self.mem_required or []), 0.0, 0.0][:2]
        return SpecLayer(self.forward, backward, parameters, output, output)


def _note_layers(value: int, info: ValidationInfo) -> int:
    reading_of(info).layers = value + 2  # the embedding, and the head
    return value


def _within_layers(value: int, info: ValidationInfo) -> int:
    layers = reading_of(info).layers
    if layers and value >= layers:
        raise PydanticCustomError("out_of_range", f"the last layer is {layers - 1}")
    return value


def _within_experts(value: int, info: ValidationInfo) -> int:
    if value > info.data.get("experts", 1):
        raise PydanticCustomError("conflict", "there are fewer experts than active ones")
    return value


Count = Annotated[int, Field(ge=1, le=10**9), FromYaml]


class MeasuredLayer(Written):
    """Measured times of a transformer's layer on a device type."""

    type: Name
    layer: Annotated[int, Field(ge=0), FromYaml, AfterValidator(_within_layers)]
    forward_ms: Positive
    backward_ms: Positive | None = None


class WrittenTransformer(Written):
    """Decoder given by its shape; its layer times are predicted for each device type."""

    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS - 2), FromYaml, AfterValidator(_note_layers)]
    hidden: Count
    heads: Count
    vocabulary: Count
    sequence: Count
    microbatch: Count
    intermediate: Annotated[Count | None, Field(description="4 × hidden")] = None
    kv_heads: Annotated[Count | None, Field(description="heads")] = None
    gated: Flag = False
    experts: Count = 1
    active_experts: Annotated[Count, AfterValidator(_within_experts)] = 1
    number_bytes: Count = 2
    attention: Attention = Attention.FLASH
    measured: Annotated[
        list[MeasuredLayer] | None, Field(min_length=1, max_length=MOST_MEASURED)
    ] = None

    def transformer(self) -> Transformer:
        """Return the transformer with defaults for missing fields."""
        return Transformer(
            layers_count=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            vocabulary=self.vocabulary,
            sequence=self.sequence,
            microbatch=self.microbatch,
            intermediate=self.intermediate or 4 * self.hidden,
            kv_heads=self.kv_heads or self.heads,
            gated=self.gated,
            experts=self.experts,
            active_experts=self.active_experts,
            number_bytes=self.number_bytes,
            attention=self.attention,
            measured=tuple(
                Measured(row.type, row.layer, row.forward_ms, row.backward_ms)
                for row in self.measured or ()
            ),
        )


def _note_layer_count(value: object, info: ValidationInfo) -> object:
    """Record the number of layers, including invalid layers."""
    if isinstance(value, list) and len(value) <= MOST_LAYERS:
        reading_of(info).layers = len(value)
    return value


def _open_profile(value: object, info: ValidationInfo) -> object:
    """Replace a profile's name by the profile's document."""
    if not isinstance(value, str):
        return value
    read_profile = reading_of(info).read_profile
    if read_profile is None:
        raise PydanticCustomError("not_readable", "a profile must be given, not named, here")
    return as_json(read_profile(value))


_LAYERS: Final = Field(min_length=1, max_length=MOST_LAYERS)


class WrittenModel(Written):
    """Model, given by exactly one of layers, profile and transformer."""

    layers: Annotated[list[WrittenLayer] | None, _LAYERS, BeforeValidator(_note_layer_count)] = None
    profile: Annotated[
        list[ProfiledLayer] | None,
        _LAYERS,
        BeforeValidator(_note_layer_count),
        BeforeValidator(_open_profile),
    ] = None
    transformer: WrittenTransformer | None = None

    @model_validator(mode="before")
    @classmethod
    def _exactly_one(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Mapping):
            return value
        reading, kinds = reading_of(info), cls.model_fields
        reading.predicts = value.get("transformer") is not None
        # A key with the value null counts as absent.
        if sum(value.get(key) is not None for key in kinds) == 1:
            return value
        message = f"model needs one of {', '.join(kinds)}"
        reading.faults.append(Fault("conflict", message, column="model"))
        return {key: item for key, item in value.items() if key not in kinds}

    def all_layers(self) -> tuple[SpecLayer, ...]:
        """Return the layers of the model: written, from its profile, or from its transformer."""
        if self.transformer is not None:
            return self.transformer.transformer().layers()
        return tuple(written.layer() for written in self.layers or self.profile or ())


Speed = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False), FromYaml]


def _known_and_unique(value: str, info: ValidationInfo) -> str:
    """Check that a device type occurs once and, if its times are predicted, is in the catalogue."""
    reading, device = reading_of(info), info.data
    # For an incomplete row only the missing keys are reported, not the repeated type.
    if value in reading.speeds and {"nodes", "gpus_per_node"} <= device.keys():
        raise PydanticCustomError("duplicate", f"{value} stands twice")
    if reading.predicts and device.get("forward_ms") is None:
        try:
            Accelerator.known(value, device.get("peak_tflops"), device.get("memory_gbytes_per_s"))
        except LookupError as error:
            raise PydanticCustomError("unknown_type", str(error)) from error
    if "speed" in device:
        reading.speeds[value] = device["speed"]
    return value


def _for_each_layer(value: list[float] | None, info: ValidationInfo) -> list[float] | None:
    if value is not None and len(value) != reading_of(info).layers:
        raise PydanticCustomError("bad_length", "there must be a time for each layer")
    return value


def _forward_for_backward(value: list[float] | None, info: ValidationInfo) -> list[float] | None:
    if value is None and info.data.get("backward_ms") is not None:
        raise PydanticCustomError("missing", "backward_ms needs it")
    return value


_LAYER_TIMES: Final = Field(
    min_length=1,
    max_length=MOST_LAYERS,
    description="A time for each layer, in place of the speed",
)


class WrittenDevice(Written):
    """Device type: its nodes, and the speed of its devices."""

    nodes: Annotated[int, Field(ge=1, le=MOST_NODES), FromYaml]
    gpus_per_node: Annotated[int, Field(ge=1, le=MOST_GPUS_PER_NODE), FromYaml]
    speed: Speed = 1.0
    memory_bytes: Positive | None = None
    backward_ms: Annotated[
        list[NotNegative] | None, _LAYER_TIMES, AfterValidator(_for_each_layer)
    ] = None
    forward_ms: Annotated[
        list[Positive] | None,
        _LAYER_TIMES,
        AfterValidator(_for_each_layer),
        AfterValidator(_forward_for_backward),
        Field(validate_default=True),
    ] = None
    peak_tflops: Annotated[
        Positive | None, Field(description="Of a device that the catalogue does not have")
    ] = None
    memory_gbytes_per_s: Positive | None = None
    efficiency: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), FromYaml] = EFFICIENCY

    # This field must be the last, because its validator uses the other fields.
    type: Annotated[Name, AfterValidator(_known_and_unique)]

    def device(self, transformer: Transformer | None) -> DeviceType:
        """Return the device type, with its own times if they are given or predicted."""
        times, memory = None, self.memory_bytes
        if self.forward_ms is not None:
            backward = self.backward_ms or map(backward_of, self.forward_ms)
            times = LayerTimes(tuple(self.forward_ms), tuple(backward))
        elif transformer is not None:
            accelerator = Accelerator.known(
                self.type, self.peak_tflops, self.memory_gbytes_per_s, self.efficiency
            )
            times = transformer.times_on(accelerator)
            if "memory_bytes" not in self.model_fields_set:
                memory = accelerator.memory_bytes
        return DeviceType(self.type, self.nodes, self.gpus_per_node, self.speed, memory, times)


def _speed_of_profile(value: float | None, info: ValidationInfo) -> float | None:
    name = info.data.get("type")
    same = reading_of(info).speeds.get(name or "")
    if value is None and same is None:
        message = "profiled_on needs a speed, or the type of one of the devices"
        raise PydanticCustomError("missing", message)
    if value is not None and same is not None and same != value:
        message = f"{name} has speed {same:g} among the devices and {value:g} here"
        raise PydanticCustomError("conflict", message)
    return same if value is None else value


class ProfiledOn(Written):
    """Device of the given layer times; times on another device are × this speed ÷ its speed."""

    type: Name | None = None
    speed: Annotated[
        Speed | None, Field(validate_default=True), AfterValidator(_speed_of_profile)
    ] = None


def _layer_number(value: str, info: ValidationInfo) -> str:
    if value == EVERY_LAYER:
        return value
    try:
        number = float(value)
    except ValueError:
        number = 0.5
    if not number.is_integer():
        raise PydanticCustomError("bad_type", "this must be the number of a layer, or *")
    if not 0 <= number <= max(reading_of(info).layers - 1, 0):
        raise PydanticCustomError("out_of_range", "the model has no such layer")
    return str(int(number))


Layer = Annotated[str, AfterValidator(_layer_number)]
Devices = Annotated[int, Field(ge=2, le=MOST_GPUS_PER_NODE), FromYaml]
# Tags in brackets are omitted from the paths of faults.
AllOrEach = Annotated[
    Annotated[NotNegative, Tag("[all]")] | Annotated[dict[Layer, NotNegative], Tag("[each]")],
    Discriminator(lambda value: "[each]" if isinstance(value, Mapping) else "[all]"),
]


class WrittenNetwork(Written):
    """Costs of transfers; a missing cost is zero. Layer `*` means all layers that are not named."""

    intra_node_gbytes_per_s: Positive | None = None
    inter_node_gbytes_per_s: Positive | None = None
    allreduce_in_node_ms: Annotated[
        dict[Layer, Annotated[dict[Devices, NotNegative], BeforeValidator(few)]] | None,
        BeforeValidator(few),
        Field(description="By layer and number of devices, once in each direction"),
    ] = None
    allreduce_across_ms: Annotated[
        AllOrEach | None,
        BeforeValidator(few),
        Field(description="Of every layer, or by layer"),
    ] = None

    def network(self, layers: int) -> Network:
        """Return the network of a model with `layers` layers."""
        inside, across = self.allreduce_in_node_ms, self.allreduce_across_ms
        if isinstance(across, float):
            across = {EVERY_LAYER: across}
        inside = inside and {EVERY_LAYER: {}} | inside
        across = across and {EVERY_LAYER: 0.0} | across
        names = [str(layer) for layer in range(layers)]
        return Network(
            self.intra_node_gbytes_per_s,
            self.inter_node_gbytes_per_s,
            tuple(inside.get(name, inside[EVERY_LAYER]) for name in names) if inside else (),
            tuple(across.get(name, across[EVERY_LAYER]) for name in names) if across else (),
        )
