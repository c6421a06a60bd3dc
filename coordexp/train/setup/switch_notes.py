"""What keys mean here, or leave without effect: said at the start of a run and in a dry run."""

from coordexp.config.schema import ExperimentConfig


def switch_notes(config: ExperimentConfig) -> list[str]:
    """Return remarks on what keys mean here, or leave without effect, for the start of a run and a dry run."""
    notes: list[str] = []
    if config.data.is_jsonl(config.data.val_annotations):
        notes.append("AP: the descriptions of the validation JSONL are its categories, an object's area is its box's")
    if config.trains_offset:
        return notes
    if config.text_arm:
        notes.append("custom.coord_tokens.enabled: false: coordinates are digits, no row is added and no offset trains")
    elif config.training.tuning != "full":
        notes.append("custom.coord_offset.enabled: false: the rows of the coord tokens stay as they start")
        if config.data.structure == "spec":
            notes.append("data.structure: spec: so do those of the added object tokens")
    if config.training.optimizer == "multimodal_coord_offset":
        notes.append("training.optimizer: multimodal_coord_offset: without offsets it has the groups of multimodal")
    return notes
