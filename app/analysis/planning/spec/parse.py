"""A planning specification, from a YAML or JSON document.

Codes of the faults of `InvalidSpecError`
-----------------------------------------
=================  ============================================================================
``missing``        a required key is absent
``unknown_key``    a key that means nothing here
``bad_type``       not of the type that is wanted
``out_of_range``   a number outside its range
``bad_length``     a list that is empty, too long, or not as long as the model
``unknown_value``  not one of the words that are allowed
``unknown_type``   a device type that the specification, or the catalogue, does not have
``duplicate``      a device type stands twice
``conflict``       two statements contradict each other
``not_readable``   a profile that cannot be read from here
``too_large``      more devices than can be planned for
=================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

from app.analysis.documents import UnreadableDocumentError, load_document
from app.analysis.planning.spec.model import (
    BACKWARD_PER_FORWARD,
    DeviceType,
    Layer,
    LayerTimes,
    Network,
    Spec,
)
from app.analysis.planning.spec.reading import Reader, join
from app.analysis.planning.spec.transformer import Accelerator, Transformer, read_transformer
from app.errors import Fault, InvalidSpecError

MOST_LAYERS: Final = 1000
MOST_TYPES: Final = 16
MOST_NODES: Final = 4096
MOST_GPUS_PER_NODE: Final = 64
MOST_MICROBATCHES: Final = 100_000
# Combinations of whole nodes × places in a node: the states of the search.
MOST_STATES: Final = 40_000_000
EVERY_LAYER: Final = "*"

# Reads the document that a `profile` names.
ProfileReader = Callable[[str], object]

_TOP = (
    "model", "profiled_on", "devices", "microbatches", "network", "allow_idle", "replicate",
    "fold_with_communication", "greedy_rule",
)  # fmt: skip
_LAYER = (
    "forward_ms", "backward_ms", "parameter_bytes", "output_bytes", "stored_activation_bytes",
)  # fmt: skip
_DEVICE = (
    "type", "nodes", "gpus_per_node", "speed", "memory_bytes", "forward_ms", "backward_ms",
    "peak_tflops", "memory_gbytes_per_s", "efficiency",
)  # fmt: skip
_NETWORK = (
    "intra_node_gbytes_per_s", "inter_node_gbytes_per_s", "allreduce_in_node_ms",
    "allreduce_across_ms",
)  # fmt: skip


def load_spec(text: str) -> object:
    """Return what a text of YAML or JSON says, for `parse_spec`.

    Raises
    ------
    InvalidSpecError
        ``spec.malformed`` or ``spec.too_large``, with the line of the fault.
    """
    try:
        return load_document(text)
    except UnreadableDocumentError as error:
        raise unreadable_spec(error) from error


def unreadable_spec(
    error: UnreadableDocumentError, name: str = "the specification"
) -> InvalidSpecError:
    """Return the error of a specification whose text is no document."""
    message = f"{name} is {error.message}"
    fault = Fault(error.code, message, line=error.line)
    return InvalidSpecError(message, code=f"spec.{error.code}", faults=(fault,))


def parse_spec(document: object, read_profile: ProfileReader | None = None) -> Spec:
    """Check a specification and return it.

    Parameters
    ----------
    document : object
        As read from YAML or JSON.
    read_profile : callable, optional
        Given the name in ``model.profile``, returns the document there; without it, a profile
        must be part of the specification.

    Raises
    ------
    InvalidSpecError
        With every fault and its path in `Fault.column`.
    """
    parser = _Parser(read_profile)
    spec = parser.spec(document)
    if parser.reader.faults or spec is None:
        faults = tuple(parser.reader.faults)
        raise InvalidSpecError(
            f"the specification has {len(faults)} fault{'s' if len(faults) > 1 else ''}",
            faults=faults,
        )
    return spec


class _Parser:
    def __init__(self, read_profile: ProfileReader | None) -> None:
        self.reader = Reader()
        self.read_profile = read_profile

    def spec(self, document: object) -> Spec | None:
        reader = self.reader
        top = reader.mapping("", document, _TOP, ("model", "devices", "microbatches"))
        if top is None:
            return None
        layers, transformer = self._model(top["model"]) if "model" in top else ((), None)
        count = len(layers)
        devices = self._devices(top["devices"], transformer, count) if "devices" in top else ()
        speed = self._profiled_speed(top.get("profiled_on"), devices)
        microbatches = (
            reader.whole("microbatches", top["microbatches"], low=1, high=MOST_MICROBATCHES)
            if "microbatches" in top
            else None
        )
        network = self._network(top.get("network", {}), count)
        flags = {
            key: reader.flag(key, top.get(key, False))
            for key in ("allow_idle", "replicate", "fold_with_communication")
        }
        rule = reader.text("greedy_rule", top.get("greedy_rule", "paper"), ("paper", "code"))
        self._check_size(devices)
        if reader.faults or microbatches is None or rule is None:
            return None
        return Spec(
            layers=layers,
            profiled_speed=speed,
            devices=devices,
            microbatches=microbatches,
            network=network,
            greedy_rule=rule,
            **{key: bool(value) for key, value in flags.items()},
        )

    # ---- model

    def _model(self, value: object) -> tuple[tuple[Layer, ...], Transformer | None]:
        reader = self.reader
        model = reader.mapping("model", value, ("layers", "profile", "transformer"))
        if model is None:
            return (), None
        given = [key for key in ("layers", "profile", "transformer") if key in model]
        if len(given) != 1:
            reader.fault("model", "conflict", "model needs one of layers, profile, transformer")
            return (), None
        if "layers" in model:
            return self._layers(model["layers"]), None
        if "profile" in model:
            return self._profile(model["profile"]), None
        transformer = read_transformer(reader, "model.transformer", model["transformer"])
        return (transformer.layers() if transformer else ()), transformer

    def _layers(self, value: object) -> tuple[Layer, ...]:
        reader, layers = self.reader, []
        for path, item in reader.items("model.layers", value, MOST_LAYERS):
            row = reader.mapping(path, item, _LAYER, ("forward_ms",))
            if row is None:
                continue
            numbers = {
                key: reader.number(join(path, key), row[key], above=key == "forward_ms")
                for key in _LAYER
                if key in row
            }
            layers.append(_layer({key: n for key, n in numbers.items() if n is not None}))
        return tuple(layers)

    def _profile(self, value: object) -> tuple[Layer, ...]:
        """Read a profile as Oobleck's profiler writes it."""
        reader = self.reader
        if isinstance(value, str):
            if self.read_profile is None:
                reader.fault(
                    "model.profile", "not_readable", "a profile must be given, not named, here"
                )
                return ()
            value = self.read_profile(value)
        layers = []
        for path, item in reader.items("model.profile", value, MOST_LAYERS):
            row = reader.mapping(path, item, ("forward", "backward", "mem_required"), ("forward",))
            if row is None or "forward" not in row:
                continue
            numbers = {"forward_ms": reader.number(f"{path}.forward", row["forward"], above=True)}
            if "backward" in row:
                numbers["backward_ms"] = reader.number(f"{path}.backward", row["backward"])
            if "mem_required" in row:
                sizes = reader.items(f"{path}.mem_required", row["mem_required"], 2)
                for key, (place, size) in zip(
                    ("parameter_bytes", "output_bytes"), sizes, strict=False
                ):
                    numbers[key] = reader.number(place, size)
            layers.append(_layer({key: n for key, n in numbers.items() if n is not None}))
        return tuple(layers)

    # ---- devices

    def _devices(
        self, value: object, transformer: Transformer | None, layers: int
    ) -> tuple[DeviceType, ...]:
        reader = self.reader
        devices: list[DeviceType] = []
        required = ("type", "nodes", "gpus_per_node")
        for path, item in reader.items("devices", value, MOST_TYPES):
            row = reader.mapping(path, item, _DEVICE, required)
            if row is None or any(key not in row for key in required):
                continue
            name = reader.text(f"{path}.type", row["type"])
            if name is not None and name in {device.name for device in devices}:
                reader.fault(f"{path}.type", "duplicate", f"{name} stands twice")
            nodes = reader.whole(f"{path}.nodes", row["nodes"], low=1, high=MOST_NODES)
            gpus = reader.whole(
                f"{path}.gpus_per_node", row["gpus_per_node"], low=1, high=MOST_GPUS_PER_NODE
            )
            speed = reader.number(f"{path}.speed", row.get("speed", 1.0), above=True, high=1e6)
            memory = (
                reader.number(f"{path}.memory_bytes", row["memory_bytes"], above=True)
                if row.get("memory_bytes") is not None
                else None
            )
            times = self._times(path, row, layers)
            if name is None or nodes is None or gpus is None or speed is None:
                continue
            if transformer is not None and times is None:
                accelerator = Accelerator.read(reader, path, name, row)
                if accelerator is None:
                    continue
                times = transformer.times_on(accelerator)
                if "memory_bytes" not in row:
                    memory = accelerator.memory_bytes
            devices.append(DeviceType(name, nodes, gpus, speed, memory, times))
        return tuple(devices)

    def _times(self, path: str, row: Mapping[str, Any], layers: int) -> LayerTimes | None:
        """Read a type's own times of every layer, where it has them."""
        reader = self.reader
        lists: dict[str, tuple[float, ...]] = {}
        for key in ("forward_ms", "backward_ms"):
            if key not in row:
                continue
            place = join(path, key)
            items = reader.items(place, row[key], MOST_LAYERS)
            if items and len(items) != layers:
                reader.fault(place, "bad_length", f"{place} must have a time for each layer")
            numbers = [reader.number(at, item, above=key == "forward_ms") for at, item in items]
            lists[key] = tuple(number for number in numbers if number is not None)
        if not lists:
            return None
        if "forward_ms" not in lists:
            reader.fault(f"{path}.forward_ms", "missing", f"{path}.forward_ms is missing")
            return None
        forward = lists["forward_ms"]
        return LayerTimes(
            forward, lists.get("backward_ms", tuple(f * BACKWARD_PER_FORWARD for f in forward))
        )

    def _profiled_speed(self, value: object, devices: tuple[DeviceType, ...]) -> float:
        """Return the speed of the device whose times the layers have."""
        if value is None:
            return 1.0
        reader = self.reader
        row = reader.mapping("profiled_on", value, ("type", "speed"))
        if row is None:
            return 1.0
        name = reader.text("profiled_on.type", row["type"]) if "type" in row else None
        same = next((device for device in devices if device.name == name), None)
        if "speed" not in row:
            if same is None:
                reader.fault(
                    "profiled_on.speed",
                    "missing",
                    "profiled_on needs a speed, or the type of one of the devices",
                )
                return 1.0
            return same.speed
        speed = reader.number("profiled_on.speed", row["speed"], above=True, high=1e6)
        if speed is not None and same is not None and same.speed != speed:
            reader.fault(
                "profiled_on.speed",
                "conflict",
                f"{name} has speed {same.speed:g} among the devices and {speed:g} here",
            )
        return speed if speed is not None else 1.0

    def _check_size(self, devices: tuple[DeviceType, ...]) -> None:
        slots = 1 + sum(device.gpus_per_node - 1 for device in devices)
        if prod(device.nodes + 1 for device in devices) * slots > MOST_STATES:
            self.reader.fault(
                "devices", "too_large", "there are too many combinations of nodes to plan for"
            )

    # ---- network

    def _network(self, value: object, layers: int) -> Network:
        reader = self.reader
        row = reader.mapping("network", value, _NETWORK)
        if row is None:
            return Network()
        speeds = {
            key: reader.number(f"network.{key}", row[key], above=True)
            for key in ("intra_node_gbytes_per_s", "inter_node_gbytes_per_s")
            if row.get(key) is not None
        }
        inside = self._by_layer("network.allreduce_in_node_ms", row, layers)
        tables = tuple(self._by_gpus(path, table) for path, table in inside)
        across = row.get("allreduce_across_ms")
        if isinstance(across, Mapping):
            found = self._by_layer("network.allreduce_across_ms", row, layers)
            times = [reader.number(path, ms) if ms != {} else 0.0 for path, ms in found]
        elif across is not None:
            times = [reader.number("network.allreduce_across_ms", across)] * layers
        else:
            times = []
        return Network(
            intra_node_gbytes_per_s=speeds.get("intra_node_gbytes_per_s"),
            inter_node_gbytes_per_s=speeds.get("inter_node_gbytes_per_s"),
            allreduce_in_node_ms=tables,
            allreduce_across_ms=tuple(ms for ms in times if ms is not None),
        )

    def _by_layer(self, path: str, row: Mapping[str, Any], layers: int) -> list[tuple[str, Any]]:
        """Return a mapping of layer → value as a list; `*` stands for layers not named."""
        reader, key = self.reader, path.rsplit(".", maxsplit=1)[-1]
        if row.get(key) is None:
            return []
        table = row[key]
        if not isinstance(table, Mapping):
            reader.fault(path, "bad_type", f"{path} must be a mapping of layers")
            return []
        rows: list[tuple[str, Any]] = [(f"{path}.{EVERY_LAYER}", table.get(EVERY_LAYER, {}))]
        rows *= layers
        for layer, item in table.items():
            if layer == EVERY_LAYER:
                continue
            place = join(path, layer)
            number = reader.whole(place, layer, low=0, high=max(layers - 1, 0))
            if number is not None and number < layers:
                rows[number] = (place, item)
        return rows

    def _by_gpus(self, path: str, value: object) -> dict[int, float]:
        reader = self.reader
        if not isinstance(value, Mapping):
            reader.fault(path, "bad_type", f"{path} must be a mapping of devices to ms")
            return {}
        table: dict[int, float] = {}
        for gpus, ms in value.items():
            place = join(path, gpus)
            number = reader.whole(place, gpus, low=2, high=MOST_GPUS_PER_NODE)
            time = reader.number(place, ms)
            if number is not None and time is not None:
                table[number] = time
        return table


def _layer(numbers: Mapping[str, float]) -> Layer:
    forward = numbers.get("forward_ms", 0.0)
    output = numbers.get("output_bytes", 0.0)
    return Layer(
        forward_ms=forward,
        backward_ms=numbers.get("backward_ms", forward * BACKWARD_PER_FORWARD),
        parameter_bytes=numbers.get("parameter_bytes", 0.0),
        output_bytes=output,
        stored_activation_bytes=numbers.get("stored_activation_bytes", output),
    )
