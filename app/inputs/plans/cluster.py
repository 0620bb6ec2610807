"""The cluster of a specification: its device types, and the network between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

from app.analysis.planning.spec.model import DeviceType, LayerTimes, Network
from app.analysis.planning.spec.transformer import EFFICIENCY, Accelerator, Transformer
from app.inputs.plans.model import MOST_LAYERS, backward_of
from app.inputs.plans.reading import reading_of
from app.inputs.values import FromYaml, Name, NotNegative, Positive, Written, few

MOST_NODES: Final = 4096
MOST_GPUS_PER_NODE: Final = 64
EVERY_LAYER: Final = "*"

Speed = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False), FromYaml]


def _known_once(value: str, info: ValidationInfo) -> str:
    """Check a type against those before it and, if its times are predicted, the catalogue."""
    reading, said = reading_of(info), info.data
    # A row that lacks more than its name is first of all not whole.
    if value in reading.speeds and {"nodes", "gpus_per_node"} <= said.keys():
        raise PydanticCustomError("duplicate", f"{value} stands twice")
    if reading.predicts and said.get("forward_ms") is None:
        try:
            Accelerator.known(value, said.get("peak_tflops"), said.get("memory_gbytes_per_s"))
        except LookupError as error:
            raise PydanticCustomError("unknown_type", str(error)) from error
    if "speed" in said:
        reading.speeds[value] = said["speed"]
    return value


def _for_each_layer(value: list[float] | None, info: ValidationInfo) -> list[float] | None:
    if value is not None and len(value) != reading_of(info).layers:
        raise PydanticCustomError("bad_length", "there must be a time for each layer")
    return value


def _with_backward(value: list[float] | None, info: ValidationInfo) -> list[float] | None:
    if value is None and info.data.get("backward_ms") is not None:
        raise PydanticCustomError("missing", "backward_ms needs it")
    return value


_OWN: Final = Field(
    min_length=1,
    max_length=MOST_LAYERS,
    description="A time for each layer, in place of the speed",
)


class WrittenDevice(Written):
    """A device type: its nodes, and how fast it is."""

    nodes: Annotated[int, Field(ge=1, le=MOST_NODES), FromYaml]
    gpus_per_node: Annotated[int, Field(ge=1, le=MOST_GPUS_PER_NODE), FromYaml]
    speed: Speed = 1.0
    memory_bytes: Positive | None = None
    backward_ms: Annotated[list[NotNegative] | None, _OWN, AfterValidator(_for_each_layer)] = None
    forward_ms: Annotated[
        list[Positive] | None,
        _OWN,
        AfterValidator(_for_each_layer),
        AfterValidator(_with_backward),
        Field(validate_default=True),
    ] = None
    peak_tflops: Annotated[
        Positive | None, Field(description="Of a device that the catalogue does not have")
    ] = None
    memory_gbytes_per_s: Positive | None = None
    efficiency: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), FromYaml] = EFFICIENCY

    # The last one: what else is said of a type decides whether its name is enough.
    type: Annotated[Name, AfterValidator(_known_once)]

    def device(self, transformer: Transformer | None) -> DeviceType:
        """Return the type, with the times that are its own."""
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
    """The device whose times the layers have: another's are × this speed / its own."""

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
# Marks in brackets stand in no path.
AllOrEach = Annotated[
    Annotated[NotNegative, Tag("[all]")] | Annotated[dict[Layer, NotNegative], Tag("[each]")],
    Discriminator(lambda value: "[each]" if isinstance(value, Mapping) else "[all]"),
]


class WrittenNetwork(Written):
    """What moving data costs; what is absent takes no time. Layer `*`: all that are not named."""

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
        """Return the network of a model of `layers` layers."""
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
