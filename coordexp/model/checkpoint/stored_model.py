"""A checkpoint on disk whose files are known to hold what its configuration says, by their headers alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen3VLConfig

from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import model_config
from coordexp.model.checkpoint.empty_model import EMBEDDING, HEAD, empty_model, has_tied_head, needed_shapes
from coordexp.model.checkpoint.weights import StoredWeights


@dataclass(frozen=True)
class StoredModel:
    """A checkpoint that ``from_pretrained`` would load in full.

    Attributes:
        config: of the model.
        weights: where their data lie.
        shapes: of what ``from_pretrained`` reads, by name; without a head that is tied.
        tied: whether embedding and head are one table.
    """

    config: Qwen3VLConfig
    weights: StoredWeights
    shapes: Mapping[str, tuple[int, ...]]
    tied: bool

    @classmethod
    def of(cls, directory: Path, *, title: str | None = None) -> "StoredModel":
        """Read a checkpoint's headers, and a head that should equal the embedding.

        Args:
            directory: of the checkpoint.
            title: what to call the checkpoint in an error; None for its directory.

        Raises:
            CheckpointError: if a weight is missing or has another shape, or a head that is said to
                be tied differs from the embedding, so that transformers would load two tables.
        """
        found = cls.of_headers(directory, title=title)
        if found.stores_tied_head and not _same_data(found.weights, EMBEDDING, HEAD):
            raise CheckpointError(
                f"{title or directory}: says tie_word_embeddings: true, but loads with two tables ({HEAD} is stored "
                "and differs from the embedding); correct its config.json"
            )
        return found

    @classmethod
    def of_headers(cls, directory: Path, *, title: str | None = None) -> "StoredModel":
        """Hold a checkpoint's headers against its configuration; no weight is read.

        transformers fills what is missing with random numbers, all of a large model if need be, and
        then only says so.

        Args:
            directory: of the checkpoint.
            title: what to call the checkpoint in an error; None for its directory.

        Raises:
            CheckpointError: if a weight is missing, has another shape, or is no plain number.
        """
        title = title or str(directory)
        config = model_config(directory)
        weights = StoredWeights.of(directory)
        model = empty_model(config, dtype=torch.float32)
        shapes = needed_shapes(model)
        stored = weights.specs
        if missing := sorted(shapes.keys() - stored.keys()):
            raise CheckpointError(f"{title}: {len(missing)} weights are missing, e.g. {missing[0]}; copy it again")
        if other := [name for name, shape in sorted(shapes.items()) if stored[name].shape != shape]:
            raise CheckpointError(
                f"{title}: {len(other)} weights are mismatched, e.g. {other[0]} is {list(stored[other[0]].shape)}, "
                f"expected {list(shapes[other[0]])}; config.json and weights do not belong together"
            )
        return cls(config, weights, shapes, has_tied_head(model))

    @property
    def unused(self) -> tuple[str, ...]:
        """Tensors of the files that the model has no place for; a stored tied head is none of them."""
        return tuple(sorted(self.weights.specs.keys() - self.shapes.keys() - ({HEAD} if self.tied else set())))

    @property
    def stores_tied_head(self) -> bool:
        """Whether the files hold a head although it is tied to the embedding."""
        return self.tied and HEAD in self.weights.specs


def _same_data(weights: StoredWeights, one: str, other: str) -> bool:
    if weights.specs[one] != weights.specs[other]:
        return False
    pairs = zip(weights.pieces(one), weights.pieces(other), strict=True)
    return all(torch.equal(a, b) for (_, a), (_, b) in pairs)
