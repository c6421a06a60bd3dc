"""Resolved configuration -> the parts of one run: model, vocabulary, data, criterion."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import CoordVocab, coord_vocab
from coordexp.data.batches.collate import EncodedSample, collate
from coordexp.data.batches.dataset import DetectionDataset
from coordexp.data.batches.packing import collate_packed
from coordexp.data.batches.positions import padded_positions
from coordexp.data.batches.prompt import Prompt
from coordexp.data.images.patches import ImageSpec
from coordexp.data.sample import Sample
from coordexp.data.sources.coco import CocoData
from coordexp.losses.criterion import Criterion
from coordexp.model.load import load
from coordexp.model.lora import apply_tuning
from coordexp.model.param_groups import ParamGroup, build_param_groups
from coordexp.model.processor import Processor
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.batch import with_rows
from coordexp.train.forward import TermForward, check_adapter_ids
from coordexp.train.setup.objective import build_criterion
from coordexp.train.setup.samples import read_split


@dataclass(frozen=True)
class Encoding:
    """How samples become sequences and batches; equal for every group of an experiment."""

    config: ExperimentConfig
    tokenizer: PreTrainedTokenizerBase
    vocab: CoordVocab
    image_spec: ImageSpec
    prompt: Prompt

    def dataset(
        self, samples: Sequence[Sample], *, with_targets: bool = True, image_cache_mib: int = 0
    ) -> DetectionDataset:
        """Wrap samples; without targets they are to be generated from."""
        data = self.config.data
        return DetectionDataset(
            samples=samples,
            tokenizer=self.tokenizer,
            vocab=self.vocab,
            prompt=self.prompt,
            image_spec=self.image_spec,
            ordering=data.ordering,
            max_objects=data.max_objects,
            max_length=data.max_length,
            seed=self.config.experiment.seed,
            image_cache_mib=image_cache_mib,
            with_targets=with_targets,
        )

    def collate(self, samples: Sequence[EncodedSample]) -> dict[str, Tensor]:
        """Batch samples for training: one row with ``data.packing``, else padded on the right."""
        image_id, merge_size = self.prompt.image_token_id, self.image_spec.merge_size
        if self.config.data.packing:
            batch = collate_packed(samples, image_token_id=image_id, merge_size=merge_size)
        else:
            pad_id = self.tokenizer.pad_token_id
            batch = collate(samples, pad_id=pad_id if isinstance(pad_id, int) else 0, image_token_id=image_id)
            batch["position_ids"] = padded_positions(samples, image_token_id=image_id, merge_size=merge_size)
        return with_rows(batch, self.vocab.coord_ids)


@dataclass(frozen=True)
class Components:
    """The parts of one run."""

    model: PreTrainedModel | PeftModel
    processor: Processor
    encoding: Encoding
    train: CocoData
    val: CocoData
    criterion: Criterion
    param_groups: list[ParamGroup]
    forward_terms: TermForward


def build_components(config: ExperimentConfig) -> Components:
    """Load the prepared base, add adapters, read the data; equal seeds give equal parts."""
    criterion = build_criterion(config)
    train = read_split(config, "train")
    val = read_split(config, "val")
    model, processor, vocab = _adapted_model(config)
    encoding = build_encoding(config, processor, vocab)
    forward_terms = TermForward(base=model, vocab=vocab, image_spec=encoding.image_spec)
    check_adapter_ids(model, vocab)
    return Components(
        model=model,
        processor=processor,
        encoding=encoding,
        train=train,
        val=val,
        criterion=criterion,
        param_groups=param_groups(config, model),
        forward_terms=forward_terms,
    )


def build_encoding(config: ExperimentConfig, processor: Processor, vocab: CoordVocab) -> Encoding:
    """Fix prompt, image size and vocabulary."""
    spec = ImageSpec.from_processor(
        processor.image_processor, min_pixels=config.data.min_pixels, max_pixels=config.data.max_pixels
    )
    prompt = Prompt.build(processor.tokenizer, config.data.prompt)
    return Encoding(config=config, tokenizer=processor.tokenizer, vocab=vocab, image_spec=spec, prompt=prompt)


def _adapted_model(config: ExperimentConfig) -> tuple[PreTrainedModel | PeftModel, Processor, CoordVocab]:
    loaded = load(
        str(ExperimentFolder.of(config).base(config)),
        dtype=config.model.dtype,
        structure=config.data.structure,
        attn_implementation=config.model.attn_implementation,
    )
    assert isinstance(loaded.model, PreTrainedModel)  # no adapter was asked for
    vocab = coord_vocab(loaded.processor.tokenizer, structure=config.data.structure)
    model = with_adapters(config, loaded.model, offset_ids=[*vocab.coord_ids, *vocab.added_structure_ids])
    return model, loaded.processor, vocab


def with_adapters(
    config: ExperimentConfig, model: PreTrainedModel, *, offset_ids: Sequence[int]
) -> PreTrainedModel | PeftModel:
    """Put on an expanded model what the configuration trains: coord offsets for ``offset_ids``, LoRA, DoRA or all."""
    offset, lora = config.custom.coord_offset, config.training.lora
    if offset.enabled:
        install_coord_offset_adapter(model, coord_ids=offset_ids, tie_head=offset.tie_head, dtype=offset.dtype)
    return apply_tuning(
        model,
        tuning=config.training.tuning,
        rank=lora.rank,
        alpha=lora.alpha,
        dropout=lora.dropout,
        vision=lora.vision,
        seed=config.experiment.seed,
    )


def param_groups(config: ExperimentConfig, model: torch.nn.Module) -> list[ParamGroup]:
    """Return the optimizer's groups.

    Raises:
        ConfigError: if a learning rate has nothing to move, or optimizer and offsets do not go together.
    """
    training, offset = config.training, config.custom.coord_offset
    return build_param_groups(
        model,
        optimizer=training.optimizer,
        learning_rate=training.learning_rate,
        vit_lr=training.vit_lr,
        aligner_lr=training.aligner_lr,
        weight_decay=training.weight_decay,
        embed_lr=offset.embed_lr,
        head_lr=offset.head_lr,
        offset_weight_decay=offset.weight_decay,
    )
