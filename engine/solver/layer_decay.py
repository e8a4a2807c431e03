"""Layer-wise learning-rate decay: the nearer to the input, the smaller the LR."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

DecayType = Literal["layer_wise", "stage_wise"]

_STAGE = r"(?:stages?|layer|features)"
_BLOCK = r"(?:layers|blocks?|resblocks|h)"
_NUMBERED = rf"(?:{_STAGE}|{_BLOCK})\.?\d+"
_FIRST = rf"(?:^\d+|(?:^|\.){_NUMBERED})"
PATTERNS: dict[str, str] = {
    # `2.` of a Sequential, `layers.2.`, `encoder.blocks.2.`, `layer2.`, `stages.2.`
    "stage_wise": rf"{_FIRST}(?=\.)",
    # the same, and the block within a stage: `stages.2.blocks.5.`, `layer2.5.`, `features.2.5.`
    "layer_wise": rf"(?:^|\.){_STAGE}\.?\d+\.\d+(?=\.)|{_FIRST}(?:\.{_NUMBERED})?(?=\.)",
}

_BACKBONE = re.compile(r"(?:\w+\.)*?backbone(?=\.)")
_HEAD = re.compile(r"(?:^|\.)(?:\w*heads?|classifier|logit_scale)(?:\.|$)")


@dataclass(frozen=True)
class LayerDecay:
    """LR factors `rate ** (layers above)` for the parameters of a deep network.

    Parameters belong to one layer when `pattern` finds the same beginning in their names; layers
    count in the order of the model's parameters. What comes before the first layer (embeddings,
    stem) and is no head by its name is layer 0; what comes after and belongs to none has factor 1,
    as has everything outside `prefix`: by default the module `backbone`, if layers are there. With
    `num_layers`, the layers found are spread evenly over that many.
    """

    rate: float = 0.9
    num_layers: int = 0
    type: DecayType = "layer_wise"
    prefix: str = ""
    pattern: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(
                f"layer decay: the rate must be above 0 and at most 1, got {self.rate}"
            )
        if self.num_layers < 0:
            raise ValueError(
                f"layer decay: the number of layers is {self.num_layers}; 0 counts them"
            )
        if self.type not in PATTERNS:
            raise ValueError(
                f"layer decay: type is {self.type!r}, not one of {', '.join(PATTERNS)}"
            )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(
                f"layer decay: {self.pattern!r} is not a regular expression: {error}"
            ) from None

    def factors(self, names: Iterable[str]) -> dict[str, float]:
        """The LR factor of each parameter, from all their names in the model's order."""
        ids = self.layer_ids(names)
        top = max(ids.values())
        return {name: self.rate ** (top - layer) for name, layer in ids.items()}

    def layer_ids(self, names: Iterable[str]) -> dict[str, int]:
        """The layer of each parameter: 0 below the first, 1, 2, …, and one more above the last."""
        names = list(names)
        prefix = self.prefix or self._find_backbone(names)
        layer_of = {name: self._layer(name, prefix) for name in names}
        index = {layer: i for i, layer in enumerate(dict.fromkeys(filter(None, layer_of.values())))}
        if not index:
            raise ValueError(
                f"layer decay found no layers: none of the names {', '.join([*layer_of][:3])}, … "
                f"has a numbered part like layers.0. under the prefix {self.prefix!r}; "
                "set SOLVER.LAYER_DECAY.PREFIX or PATTERN"
            )
        num_layers = self.num_layers or len(index)
        ids: dict[str, int] = {}
        below = True
        for name, layer in layer_of.items():
            if layer:
                below = False
                ids[name] = 1 + index[layer] * num_layers // len(index)
            else:
                is_stem = below and _inside(name, prefix) is not None and not _HEAD.search(name)
                ids[name] = 0 if is_stem else num_layers + 1
        return ids

    def _find_backbone(self, names: list[str]) -> str:
        found = filter(None, map(_BACKBONE.match, names))
        backbones = {one[0] for one in found if self._layer(one.string, one[0])}
        return backbones.pop() if len(backbones) == 1 else ""

    def _layer(self, name: str, prefix: str = "") -> str:
        """The beginning of the name that says which layer, or '' where there is none."""
        inside = _inside(name, prefix)
        found = re.search(self.pattern or PATTERNS[self.type], inside) if inside else None
        return found.string[: found.end()] if found else ""


def _inside(name: str, prefix: str) -> str | None:
    """The name without the prefix, or None outside it."""
    prefix = f"{prefix}." if prefix else ""
    return name[len(prefix) :] if name.startswith(prefix) else None
