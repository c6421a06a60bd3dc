"""What differs from one model family to another. What is not in this record is the same for all families."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Family:
    """One ``model_type``.

    Attributes:
        model_type: as ``config.json`` has it.
        title: for sentences.
        tiny_text: text configuration of a random model of this family with some hundred thousand parameters, beside
            what :func:`coordexp.model.tiny.parts.tiny_config` adds for all families.
        tiny_vision: its vision configuration, likewise.
        recurrent: whether some layers carry a state from token to token. If so, prompts are padded on the left before
            decoding, and rows cannot be dropped from or added to the cache.
        unadapted: last names of linear layers that get no adapter.
        frozen: names of modules that stay frozen even under ``tuning: full``.
        on_disk: ``modules`` if files name weights as the model does; ``converted`` if transformers renames or reshapes
            them, so that it must load and save them.
        json_boxes: unit of the boxes in the vendor's own JSON answers.
        is_sized: whether our formulas of memory and operations hold for its layers.
    """

    model_type: str
    title: str
    tiny_text: Mapping[str, object]
    tiny_vision: Mapping[str, object]
    recurrent: bool = False
    unadapted: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()
    on_disk: Literal["modules", "converted"] = "modules"
    json_boxes: Literal["thousandths", "pixels"] = "thousandths"
    is_sized: bool = False

    @property
    def slower(self) -> str:
        """Why its models answer more slowly than others; "" if they do not."""
        if not self.recurrent:
            return ""
        return (
            f"{self.title}: slower than other families, whose caches can drop and add rows; transformers' own generate "
            "answers, in batches of similar lengths"
        )
