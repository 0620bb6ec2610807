"""Documents with measurements of a tensor-parallel group, from people and jobs, and their faults.

=================  ============================================================================
code of a fault    meaning
=================  ============================================================================
``missing``        a required key is absent
``unknown_key``    a key that the document does not have
``bad_type``       a value of a wrong type
``not_finite``     NaN or an infinity
``out_of_range``   a number outside its range
``bad_length``     a list that is empty, too long, or not as long as there are ranks
``unknown_value``  a word that is not one of the allowed words
``unknown_rank``   a rank that the group does not have
``duplicate``      a rank that occurs twice
``conflict``       two statements contradict each other
=================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError

from app.analysis.documents import UnreadableDocumentError, load_document
from app.analysis.mitigation.tensor.advice import ALL_METHODS
from app.analysis.mitigation.tensor.document import Method
from app.analysis.mitigation.tensor.group import (
    FREE,
    Affine,
    Costs,
    Group,
    Shares,
    fit,
    fit_communication,
    fit_constant,
    without_plan,
)
from app.analysis.mitigation.tensor.prediction import Kind, Plans, Sizes
from app.errors import Fault, InvalidTensorError
from app.platform.validation import FromYaml, Written, faults_of, word

MOST_RANKS: Final = 256
MOST_COLUMNS: Final = 10_000_000
MOST_SAMPLES: Final = 1000
# Largest number of kinds of layers.
MOST_SIZES: Final = 32
# Least time of matrix multiplications as a share of the slowest rank's time. Below it moving
# multiplications gains nothing, and the fits lose their precision in floating point.
LEAST_MATMUL: Final = 1e-6
# Relative tolerance by which the measured time of a part may exceed the time of the whole step.
ROUNDING: Final = 1e-9

# Pydantic's error types → codes of faults; other types get the code `bad_type`.
CODES: Final = {
    "missing": "missing",
    "extra_forbidden": "unknown_key",
    "finite_number": "not_finite",
    "enum": "unknown_value",
    "literal_error": "unknown_value",
    "too_short": "bad_length",
    "too_long": "bad_length",
    "too_many_keys": "bad_length",
    "string_too_long": "bad_length",
    "greater_than": "out_of_range",
    "greater_than_equal": "out_of_range",
    "less_than_equal": "out_of_range",
}

Time = Annotated[float, Field(ge=1e-9, le=1e6, allow_inf_nan=False), FromYaml]
Times = Annotated[list[Time], Field(min_length=2, max_length=MOST_RANKS)]
Columns = Annotated[int, Field(ge=1, le=MOST_COLUMNS), FromYaml]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), FromYaml]
_Amount = Annotated[int, Field(ge=0, le=MOST_COLUMNS), FromYaml]
_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False), FromYaml]
Samples = Annotated[list[tuple[_Amount, _Seconds]], Field(min_length=1, max_length=MOST_SAMPLES)]
_Senders = Annotated[int, Field(ge=1, lt=MOST_RANKS), FromYaml]


_PAIR: Final = 2


def _of_one_sender(sample: object) -> object:
    return [*sample, 1] if isinstance(sample, list | tuple) and len(sample) == _PAIR else sample


_Communication = Annotated[
    tuple[_Amount, _Seconds, _Senders],
    BeforeValidator(
        _of_one_sender,
        json_schema_input_type=tuple[_Amount, _Seconds] | tuple[_Amount, _Seconds, _Senders],
    ),
]
_Size = Annotated[int, Field(ge=1, le=2**40), FromYaml]
_Bytes = Annotated[int, Field(ge=1, le=1024), FromYaml]


class WrittenCosts(Written):
    """Samples of a pre-test, each [columns, seconds a step]; a cost without samples is zero."""

    communicate: Annotated[
        Annotated[list[_Communication], Field(min_length=1, max_length=MOST_SAMPLES)] | None,
        Field(
            description="Φ1: send, and bring back; [columns of all senders, seconds, senders], "
            "without the last of one sender"
        ),
    ] = None
    compute: Annotated[Samples | None, Field(description="Φ2: compute on a receiver")] = None
    allocate: Annotated[Samples | None, Field(description="Ω1: room to resize")] = None
    extract: Annotated[Samples | None, Field(description="Ω2: take columns apart")] = None
    lend: Annotated[
        Samples | None, Field(description="Hand columns over, on the rank that sheds them")
    ] = None

    def costs(self) -> Costs:
        """Return the cost functions fitted to the samples."""
        return Costs(
            communicate=Costs().communicate
            if self.communicate is None
            else fit_communication(self.communicate),
            compute=None if self.compute is None else fit(self.compute),
            allocate_s=0.0 if self.allocate is None else fit_constant(self.allocate),
            extract=_fitted(self.extract),
            lend=_fitted(self.lend),
        )


def _fitted(samples: Sequence[tuple[float, float]] | None) -> Affine:
    return FREE if samples is None else fit(samples)


class WrittenSizes(Written):
    """Sizes of all layers, or of the layers of one kind."""

    kind: Annotated[Kind, BeforeValidator(word)]
    width: Annotated[_Size, Field(description="Of the model; rows of W for a column or a row")]
    tokens: _Size
    layers: Annotated[int, Field(ge=1, le=100_000), FromYaml] = 1
    value_bytes: _Bytes = 2
    state_bytes: Annotated[_Bytes, Field(description="Of a parameter with its optimizer")] = 16
    units: Annotated[
        Columns | None, Field(description="Units of a rank's columns there: heads, for one")
    ] = None
    share: Annotated[
        float,
        Field(gt=0, le=1e6, allow_inf_nan=False, description="Of a rank's multiplications"),
        FromYaml,
    ] = 1.0
    plans: Annotated[
        Annotated[Plans, BeforeValidator(word)] | None,
        Field(description="Plans that shed so: step, once (sticky) or, without it, all"),
    ] = None

    def sizes(self) -> Sizes:
        """Return the sizes as a `Sizes` object."""
        return Sizes(**dict(self))


def _how_many(value: object) -> str:
    return "[several]" if isinstance(value, list) else "[one]"


WrittenKinds = Annotated[
    Annotated[WrittenSizes, Tag("[one]")]
    | Annotated[list[WrittenSizes], Field(min_length=1, max_length=MOST_SIZES), Tag("[several]")],
    Discriminator(_how_many),
]


class WrittenGroup(Written):
    """Fields of a group that a specification and a job's report share."""

    times_s: Annotated[Times, Field(description="T: a step of each rank without waiting, s")]
    matmul_s: Annotated[Times, Field(description="M: its matrix multiplications, s")]
    columns: Annotated[Columns, Field(description="K: of each rank, without a plan")]
    unit: Annotated[Columns, Field(description="Columns that stay together")] = 1
    methods: Annotated[
        list[Annotated[Method, BeforeValidator(word)]] | None,
        Field(min_length=1, max_length=len(Method), description="Those that the job knows"),
    ] = None
    costs: WrittenCosts | None = None
    sizes: Annotated[
        WrittenKinds | None, Field(description="Of the layers, or of each kind of them")
    ] = None

    def each_size(self) -> tuple[Sizes, ...]:
        """Return the sizes of each kind of layers; empty if the document has none."""
        if self.sizes is None:
            return ()
        written = self.sizes if isinstance(self.sizes, list) else [self.sizes]
        return tuple(item.sizes() for item in written)

    @property
    def known_methods(self) -> frozenset[Method]:
        """Return the methods that the job implements; ``none`` is always included."""
        return ALL_METHODS if self.methods is None else frozenset({Method.NONE, *self.methods})

    def contradictions(self) -> list[Fault]:
        """Return a fault for each pair of fields that contradict each other."""
        ranks = len(self.times_s)
        faults = []
        if len(self.matmul_s) != ranks:
            message = f"matmul_s has {len(self.matmul_s)} entries, times_s has {ranks}"
            faults.append(Fault("bad_length", message, column="matmul_s"))
        if self.columns % self.unit:
            message = f"unit {self.unit} does not divide columns {self.columns}"
            faults.append(Fault("conflict", message, column="unit"))
        for rank, (time_s, matmul_s) in enumerate(zip(self.times_s, self.matmul_s, strict=False)):
            if matmul_s > time_s * (1 + ROUNDING):
                place = f"matmul_s[{rank}]"
                message = f"{place} is over times_s[{rank}], of which it is a part"
                faults.append(Fault("conflict", message, column=place))
        for number, item in enumerate(self.each_size()):
            if item.units is not None and item.units > self.columns:
                at = f"sizes[{number}]" if isinstance(self.sizes, list) else "sizes"
                message = f"{at}.units is over the {self.columns} columns that a rank has"
                faults.append(Fault("conflict", message, column=f"{at}.units"))
        return faults

    def group(self, in_force: Shares | None, computed: Sequence[float] | None = None) -> Group:
        """Return the group's times without the effect of the plan in force.

        Parameters
        ----------
        computed : sequence of float, optional
            Share of its columns that each rank computed, if it differs from the plan.

        Raises
        ------
        InvalidTensorError
            A rank's multiplications are below a millionth of the slowest rank's time.
        """
        time_s = np.array(self.times_s)
        matmul_s = np.minimum(np.array(self.matmul_s), time_s)
        shares = in_force or Shares.nothing(len(time_s))
        group = without_plan(
            time_s,
            matmul_s,
            self.columns,
            shares,
            self.unit,
            None if computed is None else np.array(computed),
        )
        too_little = np.flatnonzero(group.matmul_s < LEAST_MATMUL * group.time_s.max())
        if len(too_little):
            place = f"matmul_s[{too_little[0]}]"
            message = f"{place} is under a millionth of the slowest rank's time"
            raise refused([Fault("out_of_range", message, column=place)])
        return group


def read_text(text: str, name: str) -> object:
    """Return the document in a text of YAML or JSON.

    Raises
    ------
    InvalidTensorError
        ``tensor.malformed`` or ``tensor.too_large``, with the line.
    """
    try:
        return load_document(text)
    except UnreadableDocumentError as error:
        raise unreadable(error, name) from error


def unreadable(error: UnreadableDocumentError, name: str) -> InvalidTensorError:
    """Return the error for a text that is neither valid YAML nor valid JSON."""
    message = f"{name} is {error.message}"
    fault = Fault(error.code, message, line=error.line)
    return InvalidTensorError(message, code=f"tensor.{error.code}", faults=(fault,))


def refused(faults: Sequence[Fault]) -> InvalidTensorError:
    """Return the error for a document with faults."""
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return InvalidTensorError(f"{faults[0].message}{more}", faults=tuple(faults))


def refused_by_pydantic(error: ValidationError, root: str) -> InvalidTensorError:
    """Return the error for a document that pydantic refuses."""
    return refused(faults_of(error, CODES, "bad_type", root=root))
