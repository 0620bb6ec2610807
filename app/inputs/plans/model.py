"""The model of a specification: its layers, a profile of them, or a transformer's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from app.analysis.planning.spec.model import BACKWARD_PER_FORWARD, Layer
from app.analysis.planning.spec.transformer import Measured, Transformer
from app.errors import Fault
from app.inputs.plans.reading import reading_of
from app.inputs.values import Flag, FromYaml, Name, NotNegative, Positive, Written, as_json

MOST_LAYERS: Final = 1000
MOST_MEASURED: Final = 10_000


def backward_of(forward_ms: float) -> float:
    """Return what a backward pass takes where only the forward pass was measured."""
    return forward_ms * BACKWARD_PER_FORWARD


class WrittenLayer(Written):
    """Times of one microbatch on the profiled device, and sizes."""

    forward_ms: Positive
    backward_ms: Annotated[NotNegative | None, Field(description="3 × forward_ms")] = None
    parameter_bytes: NotNegative = 0.0
    output_bytes: NotNegative = 0.0
    stored_activation_bytes: Annotated[NotNegative | None, Field(description="output_bytes")] = None

    def layer(self) -> Layer:
        """Return the layer with what was left out."""
        stored, backward_ms = self.stored_activation_bytes, self.backward_ms
        return Layer(
            forward_ms=self.forward_ms,
            backward_ms=backward_of(self.forward_ms) if backward_ms is None else backward_ms,
            parameter_bytes=self.parameter_bytes,
            output_bytes=self.output_bytes,
            stored_activation_bytes=self.output_bytes if stored is None else stored,
        )


class ProfiledLayer(Written):
    """A layer as Oobleck's profiler writes it; `mem_required` has parameters and output."""

    forward: Positive
    backward: NotNegative | None = None
    mem_required: Annotated[list[NotNegative] | None, Field(min_length=1, max_length=2)] = None

    def layer(self) -> Layer:
        """Return the layer with what was left out."""
        backward = backward_of(self.forward) if self.backward is None else self.backward
        parameters, output = [*(self.mem_required or []), 0.0, 0.0][:2]
        return Layer(self.forward, backward, parameters, output, output)


def _count_blocks(value: int, info: ValidationInfo) -> int:
    reading_of(info).layers = value + 2  # the embedding, and the head
    return value


def _block(value: int, info: ValidationInfo) -> int:
    layers = reading_of(info).layers
    if layers and value >= layers:
        raise PydanticCustomError("out_of_range", f"the last layer is {layers - 1}")
    return value


def _active(value: int, info: ValidationInfo) -> int:
    if value > info.data.get("experts", 1):
        raise PydanticCustomError("conflict", "there are fewer experts than active ones")
    return value


Count = Annotated[int, Field(ge=1, le=10**9), FromYaml]


class MeasuredLayer(Written):
    """What a layer of a transformer took on a device type."""

    type: Name
    layer: Annotated[int, Field(ge=0), FromYaml, AfterValidator(_block)]
    forward_ms: Positive
    backward_ms: Positive | None = None


class WrittenTransformer(Written):
    """A decoder by its shape; the times of its layers are predicted for each device type."""

    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS - 2), FromYaml, AfterValidator(_count_blocks)]
    hidden: Count
    heads: Count
    vocabulary: Count
    sequence: Count
    microbatch: Count
    intermediate: Annotated[Count | None, Field(description="4 × hidden")] = None
    kv_heads: Annotated[Count | None, Field(description="heads")] = None
    gated: Flag = False
    experts: Count = 1
    active_experts: Annotated[Count, AfterValidator(_active)] = 1
    number_bytes: Count = 2
    measured: Annotated[
        list[MeasuredLayer] | None, Field(min_length=1, max_length=MOST_MEASURED)
    ] = None

    def transformer(self) -> Transformer:
        """Return the transformer with what was left out."""
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
            measured=tuple(
                Measured(one.type, one.layer, one.forward_ms, one.backward_ms)
                for one in self.measured or ()
            ),
        )


def _count(value: object, info: ValidationInfo) -> object:
    """Note how many layers there are, whatever is wrong with them."""
    if isinstance(value, list) and len(value) <= MOST_LAYERS:
        reading_of(info).layers = len(value)
    return value


def _open(value: object, info: ValidationInfo) -> object:
    """Read the profile that a name stands for."""
    if not isinstance(value, str):
        return value
    read_profile = reading_of(info).read_profile
    if read_profile is None:
        raise PydanticCustomError("not_readable", "a profile must be given, not named, here")
    return as_json(read_profile(value))


_ALL: Final = Field(min_length=1, max_length=MOST_LAYERS)


class WrittenModel(Written):
    """The model: one of the three."""

    layers: Annotated[list[WrittenLayer] | None, _ALL, BeforeValidator(_count)] = None
    profile: Annotated[
        list[ProfiledLayer] | None, _ALL, BeforeValidator(_count), BeforeValidator(_open)
    ] = None
    transformer: WrittenTransformer | None = None

    @model_validator(mode="before")
    @classmethod
    def _one(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Mapping):
            return value
        reading, kinds = reading_of(info), cls.model_fields
        reading.predicts = value.get("transformer") is not None
        # A null stands for nothing, next to another one and alone.
        if sum(value.get(key) is not None for key in kinds) == 1:
            return value
        message = f"model needs one of {', '.join(kinds)}"
        reading.faults.append(Fault("conflict", message, column="model"))
        return {key: item for key, item in value.items() if key not in kinds}

    def all_layers(self) -> tuple[Layer, ...]:
        """Return the layers of whichever is given."""
        if self.transformer is not None:
            return self.transformer.transformer().layers()
        return tuple(one.layer() for one in self.layers or self.profile or ())
