"""Whole jobs to begin with: published models on nodes of the catalogue's devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class JobPreset:
    """A specification by its key in addresses."""

    name: str
    source: str
    spec: str


_SPEC: Final = """\
# {source}
model:
  transformer: {{{shape}}}
devices:
{devices}
global_batch: {batch}    # sequences
sequence: {sequence}    # tokens of one
network: {{inter_node_gbytes_per_s: {gbytes}}}    # of a whole node
# parallelism: {{tp: 8, pp: 4}}    # fixes any of tp, pp, dp, microbatch, recompute, interleave
losses: 1    # nodes that may be lost
"""


def _preset(
    name: str, source: str, shape: str, devices: str, sizes: tuple[int, int, int]
) -> JobPreset:
    batch, sequence, gbytes = sizes
    text = _SPEC.format(
        source=source, shape=shape, devices=devices, batch=batch, sequence=sequence, gbytes=gbytes
    )
    return JobPreset(name, source, text)


JOB_PRESETS: Final = {
    "gpt-145b": _preset(
        "GPT 145.6 B on 1,536 A100",
        "Narayanan et al., arXiv:2104.04473, table 1",
        "layers: 80, hidden: 12288, heads: 96, vocabulary: 51200",
        "  - {type: A100, nodes: 192, gpus_per_node: 8}",
        (2304, 2048, 200),
    ),
    "llama-3-70b": _preset(
        "Llama 3 70 B on 128 H100",
        "Grattafiori et al., arXiv:2407.21783, table 3",
        "layers: 80, hidden: 8192, heads: 64, kv_heads: 8, intermediate: 28672, gated: true, "
        "vocabulary: 128000",
        "  - {type: H100, nodes: 16, gpus_per_node: 8}",
        (512, 8192, 400),
    ),
    "llama-3-8b-mixed": _preset(
        "Llama 3 8 B on A100 and H100",
        "Grattafiori et al., arXiv:2407.21783, table 3",
        "layers: 32, hidden: 4096, heads: 32, kv_heads: 8, intermediate: 14336, gated: true, "
        "vocabulary: 128000",
        "  - {type: A100, nodes: 4, gpus_per_node: 8}\n"
        "  - {type: H100, nodes: 4, gpus_per_node: 8}",
        (512, 4096, 200),
    ),
}
