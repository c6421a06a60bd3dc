"""The model families that coordexp trains, by ``model_type``. To add one, write a file here and a line below."""

from coordexp.errors import CheckpointError, show
from coordexp.model.families.family import Family
from coordexp.model.families.qwen2_5_vl import QWEN2_5_VL
from coordexp.model.families.qwen3_5 import QWEN3_5
from coordexp.model.families.qwen3_5_moe import QWEN3_5_MOE
from coordexp.model.families.qwen3_vl import QWEN3_VL
from coordexp.model.families.qwen3_vl_moe import QWEN3_VL_MOE

_ALL = (QWEN3_VL, QWEN3_5, QWEN2_5_VL, QWEN3_VL_MOE, QWEN3_5_MOE)
FAMILIES = {family.model_type: family for family in _ALL}

_REFUSED = {
    "qwen4_exp": (
        ", whose n-gram embeddings follow from token ids and from the size of the vocabulary, which new tokens change"
    ),
}


def family_of(model_type: object, *, where: object) -> Family:
    """Return the family of a ``model_type``.

    Raises:
        CheckpointError: if coordexp does not train it; ``where`` names the file that says it.
    """
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    *first_types, last_type = FAMILIES
    raise CheckpointError(
        f"{where}: model_type is {show(model_type)}{_REFUSED.get(str(model_type), '')}; expected "
        f"{', '.join(first_types)} or {last_type}"
    )


__all__ = ["FAMILIES", "Family", "family_of"]
