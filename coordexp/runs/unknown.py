"""What a model writes in place of the names of categories."""

from collections.abc import Mapping

from coordexp.errors import show
from coordexp.files import read_model
from coordexp.metrics import BOX_KINDS, Decoding
from coordexp.runs.folder import DecodingFolder

_LOW = 0.05  # an AP below which one wants to know what is written instead
_SHOWN = 5


def unknown_sentence(folder: DecodingFolder, decoding: Decoding, metrics: Mapping[str, float]) -> str | None:
    """Say which descriptions name no category, where most objects have such a one and AP is low; else None."""
    total, unknown = (metrics.get(f"{decoding}/{name}", 0.0) for name in ("num_objects", "unknown_category"))
    if not unknown or 2 * unknown < total or any(metrics.get(f"{decoding}/{kind}/AP", 0) >= _LOW for kind in BOX_KINDS):
        return None
    names = read_model(dict[str, int], folder.unknown, what="descriptions and their counts")
    how_many = "none" if unknown == total else f"{total - unknown:,.0f}"
    frequent = ", ".join(show(name) for name in list(names)[:_SHOWN])
    return f"{decoding}: {how_many} of {total:,.0f} written objects names a category; most frequent: {frequent}"
