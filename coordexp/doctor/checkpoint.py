"""The base checkpoint of a run, read without its weights: configuration, headers, tokenizer, ids, processor."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedTokenizerBase, Qwen3VLConfig

from coordexp.cluster.capacity import cluster_address
from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.vocab import CoordVocab, added_tokens, digit_ids, expand_tokenizer
from coordexp.data.batches.prompt import IMAGE_TOKEN, Prompt
from coordexp.data.images.patches import ImageSpec
from coordexp.doctor.finding import Findings, first_line, size_text
from coordexp.doctor.location import Location, cache_directory, hub_answers, is_offline, locate
from coordexp.doctor.published import MAX_PIXELS, NUM_TOKENS, published_config
from coordexp.doctor.sizes import Sizes, expanded_config, expected_shapes, meta_model
from coordexp.errors import CheckpointError, TokenizerError
from coordexp.model.attention import check_attention
from coordexp.model.checkpoint.directory import check_config
from coordexp.model.checkpoint.empty_model import HEAD, Dimensions
from coordexp.model.checkpoint.weights import StoredWeights, TensorSpec
from coordexp.model.processor import Processor

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_PROMPT_TOKENS = 30  # of Qwen's template around the default instruction, where no tokenizer says


@dataclass(frozen=True)
class Text:
    """What tokenizer and processor of a checkpoint give.

    Attributes:
        tokenizer: with the coordinate tokens added, in memory only.
        vocab: their ids.
        prompt: of the run.
        image_spec: sizes of images.
    """

    tokenizer: PreTrainedTokenizerBase
    vocab: CoordVocab
    prompt: Prompt
    image_spec: ImageSpec


@dataclass(frozen=True)
class Base:
    """What is known of a checkpoint.

    Attributes:
        config: of the model.
        dtype: in which its weights will be.
        coord_ids: of the coord tokens, after expansion.
        num_extra_ids: structure tokens added behind them.
        text: None where tokenizer or processor could not be read.
        directory: of the files; None if nothing was downloaded yet.
        max_pixels: of an image, where no processor says.
    """

    config: Qwen3VLConfig
    dtype: torch.dtype
    coord_ids: range
    num_extra_ids: int
    text: Text | None
    directory: Path | None

    @property
    def num_tokens(self) -> int:
        """Ids that the expanded tables need rows for, at least."""
        return self.coord_ids.stop + self.num_extra_ids

    @property
    def weights_bytes(self) -> int:
        """Size of the expanded base, in its dtype."""
        return Sizes.of(
            meta_model(expanded_config(self.config, num_tokens=self.num_tokens), dtype=self.dtype)
        ).num_bytes

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens around the image."""
        return _PROMPT_TOKENS if self.text is None else len(self.text.prompt)

    def num_image_tokens(self, sizes_px: frozenset[tuple[int, int]], max_pixels: int | None) -> int:
        """Return the image tokens of the largest image: of these sizes, or of ``max_pixels``."""
        if self.text is not None and sizes_px:
            spec = self.text.image_spec
            return max(spec.num_tokens(width=width, height=height) for width, height in sizes_px)
        pixels = max_pixels or (MAX_PIXELS if self.text is None else self.text.image_spec.max_pixels)
        dimensions = Dimensions.of(self.config)
        side = dimensions.patch_size * dimensions.merge_size
        return max(1, pixels // side**2)


def examine_checkpoint(run: ExperimentConfig, findings: Findings) -> Base | None:
    """Check a run's base; None where no model is known."""
    location = findings.attempt("checkpoint", lambda: locate(run.model))
    if location is None:
        return None
    if location.directory is None or "config.json" in location.missing:
        return _not_cached(run, findings)
    directory = location.directory
    config = findings.attempt("checkpoint", lambda: _config(directory))
    if config is None:
        return None
    weights = None
    if location.missing:
        _say_download(run, location, findings)
    else:
        weights = findings.attempt("weights", lambda: StoredWeights.of(directory))
    if weights is not None:
        found = weights
        findings.attempt("weights", lambda: _check_weights(config, found, findings))
    text = findings.attempt("tokenizer", lambda: _text(run, directory, config, findings))
    _check_attention(run, findings)
    return Base(
        config=config,
        dtype=_dtype(run, config, weights.specs if weights else {}),
        coord_ids=text.vocab.coord_ids if text else range(NUM_TOKENS + 1, NUM_TOKENS + 1001),
        num_extra_ids=len(text.vocab.added_structure_ids) if text else 0,
        text=text,
        directory=None if location.missing else directory,
    )


def _not_cached(run: ExperimentConfig, findings: Findings) -> Base | None:
    config = published_config(run.model.path)
    _say_download(run, Location(None, (), is_hub=True), findings)
    _check_attention(run, findings)
    if config is None:
        return None
    num_extra = 2 if run.data.structure == "spec" else 0
    ids = range(NUM_TOKENS + 1, NUM_TOKENS + 1001)
    return Base(config, _dtype(run, config, {}), ids, num_extra, None, None)


def _say_download(run: ExperimentConfig, location: Location, findings: Findings) -> None:
    path = run.model.path
    what = f"{len(location.missing)} files of {path}, e.g. {location.missing[0]}" if location.missing else path
    config = published_config(path)
    num_bytes = Sizes.of(meta_model(config, dtype=torch.bfloat16)).num_bytes if config else 0
    size = f"about {size_text(num_bytes)}" if config else "its weights"
    cache = cache_directory()
    if is_offline():
        findings.fail(
            "checkpoint",
            f"{what}: not in the cache {cache}, and HF_HUB_OFFLINE forbids to download; unset it, or give a directory",
        )
    elif not hub_answers():
        findings.fail(
            "checkpoint",
            f"{what}: not in the cache {cache}, and the hub does not answer; download it elsewhere and give the "
            "directory as model.path, or set HF_HOME to a cache that has it",
        )
    else:
        findings.warn("checkpoint", f"{what}: not in the cache {cache}; a run would first download {size}")


def _config(directory: Path) -> Qwen3VLConfig:
    check_config(directory)
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{directory / 'config.json'}: makes no configuration ({first_line(error)})") from None
    assert isinstance(config, Qwen3VLConfig)
    return config


def _check_weights(config: Qwen3VLConfig, weights: StoredWeights, findings: Findings) -> None:
    """Compare the files' headers with what the model needs."""
    title, stored = weights.directory, weights.specs
    shapes = dict(expected_shapes(meta_model(config, dtype=torch.float32)))
    if missing := sorted(shapes.keys() - stored.keys()):
        raise CheckpointError(f"{title}: {len(missing)} weights are missing, e.g. {missing[0]}; copy it again")
    if other := [name for name, shape in sorted(shapes.items()) if stored[name].shape != shape]:
        raise CheckpointError(
            f"{title}: {len(other)} weights are mismatched, e.g. {other[0]} is {list(stored[other[0]].shape)}, "
            f"expected {list(shapes[other[0]])}; config.json and weights do not belong together"
        )
    size = sum(spec.num_bytes for spec in stored.values())
    files = len(set(weights.files.values()))
    dtypes = ", ".join(sorted({str(spec.dtype)[6:] for spec in stored.values()}))
    findings.ok(
        "weights",
        f"{sum(spec.num_elements for spec in stored.values()):,} numbers ({dtypes}, {size_text(size)}) in {files} "
        f"{'file' if files == 1 else 'files'}: every name and shape fits; headers read, no weight loaded",
    )
    if HEAD in stored and HEAD not in shapes:
        findings.warn("weights", f"{HEAD} is stored beside a tied embedding; whether they are equal was not read")


def _text(run: ExperimentConfig, directory: Path, config: Qwen3VLConfig, findings: Findings) -> Text:
    processor = Processor.from_directory(directory)
    tokenizer = processor.tokenizer
    num_before = len(tokenizer)
    num_rows = Dimensions.of(config).text.vocab_size
    if num_before > num_rows:
        raise TokenizerError(
            f"{directory}: the tokenizer has {num_before} entries but the model only {num_rows} rows: they do not "
            "belong together"
        )
    _check_special_ids(tokenizer, config, directory)
    known = tokenizer.get_vocab()
    num_new = sum(token not in known for token in added_tokens(run.data.structure))
    vocab = expand_tokenizer(tokenizer, structure=run.data.structure)
    if num_new and run.model.vocab_init == "numeric":
        digit_ids(tokenizer)
    prompt = Prompt.build(tokenizer, run.data.prompt)
    spec = ImageSpec.from_processor(
        processor.image_processor, min_pixels=run.data.min_pixels, max_pixels=run.data.max_pixels
    )
    _check_patches(spec, config, directory)
    ids = vocab.coord_ids
    origin = f"{num_new:,} tokens will be added" if num_new else "there already"
    findings.ok("tokenizer", f"{num_before:,} entries; coord tokens {ids.start}..{ids.stop - 1} ({origin})")
    findings.attempt("coord_offset.ids", lambda: _check_offset_ids(run, vocab))
    findings.ok(
        "processor",
        f"chat template renders ({len(prompt)} tokens around the image); {spec.min_pixels:,} to "
        f"{spec.max_pixels:,} pixels in patches of {spec.patch_size}",
    )
    return Text(tokenizer, vocab, prompt, spec)


def _check_special_ids(tokenizer: PreTrainedTokenizerBase, config: Qwen3VLConfig, directory: Path) -> None:
    found = tokenizer.get_vocab().get(IMAGE_TOKEN)
    if found != config.image_token_id:
        raise TokenizerError(
            f"{directory}: {IMAGE_TOKEN} is {'missing' if found is None else found} in the tokenizer, but "
            f"{config.image_token_id} in config.json; tokenizer and model do not belong together"
        )
    if not isinstance(tokenizer.pad_token_id, int):
        raise TokenizerError(f"{directory}: the tokenizer has no padding token; expected pad_token in its settings")


def _check_patches(spec: ImageSpec, config: Qwen3VLConfig, directory: Path) -> None:
    dimensions = Dimensions.of(config)
    own = (spec.patch_size, spec.temporal_patch_size, spec.merge_size)
    models = (dimensions.patch_size, dimensions.temporal_patch_size, dimensions.merge_size)
    if own != models:
        raise CheckpointError(
            f"{directory}: the image processor makes patches of {own} (size, frames, merged), the model takes "
            f"{models}; they do not belong together"
        )


def _check_offset_ids(run: ExperimentConfig, vocab: CoordVocab) -> None:
    ids, coords = run.custom.coord_offset.ids, vocab.coord_ids
    if run.custom.coord_offset.enabled and ids is not None and range(ids.start, ids.end + 1) != coords:
        raise TokenizerError(
            f"custom.coord_offset.ids is {ids.start}..{ids.end}, but {run.model.path} has its coord tokens at "
            f"{coords.start}..{coords.stop - 1}; leave ids out to take the tokenizer's"
        )


def _check_attention(run: ExperimentConfig, findings: Findings) -> None:
    elsewhere = cluster_address() is not None
    findings.attempt(
        "attention",
        lambda: check_attention(run.model.attn_implementation, dtype=run.model.dtype, elsewhere=elsewhere),
    )


def _dtype(run: ExperimentConfig, config: Qwen3VLConfig, specs: Mapping[str, TensorSpec]) -> torch.dtype:
    """Return the dtype that the weights will have, as ``from_pretrained`` finds it under ``auto``."""
    if run.model.dtype != "auto":
        return _DTYPES[run.model.dtype]
    if isinstance(config.dtype, torch.dtype):
        return config.dtype
    stored = [spec.dtype for spec in specs.values() if spec.dtype.is_floating_point]
    return max(set(stored), key=stored.count) if stored else torch.bfloat16
