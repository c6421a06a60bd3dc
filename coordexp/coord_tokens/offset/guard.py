"""Keeps a plain ``save_pretrained`` from losing coord offsets without a word."""

from dataclasses import dataclass
from os import PathLike
from typing import Self, cast

from transformers import PreTrainedModel

from coordexp.coord_tokens.offset.hooks import adapter_slot
from coordexp.coord_tokens.offset.module import CoordOffsetAdapter
from coordexp.errors import CheckpointError


@dataclass(eq=False)
class GuardedSave:
    """A model's ``save_pretrained`` that refuses to write offsets where ``from_pretrained`` never reads them."""

    owner: PreTrainedModel

    def __call__(self, save_directory: str | PathLike[str], **options: object) -> None:
        """Save as the model's class does, if no bare adapter is in it.

        Raises:
            CheckpointError: if one is.
        """
        if isinstance(adapter_slot(self.owner), CoordOffsetAdapter):
            raise CheckpointError(
                f"{save_directory}: a plain checkpoint would lose the coord offsets; save the PeftModel around the "
                "model, and merge that (coordexp.model.merge)"
            )
        type(self.owner).save_pretrained(self.owner, save_directory, **options)  # pyright: ignore[reportArgumentType]

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Follow a copied model."""
        return type(self)(cast("PreTrainedModel", memo.get(id(self.owner), self.owner)))
