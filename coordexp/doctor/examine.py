"""All checks of ``doctor``, one after the other; a failure of one never hides another."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from coordexp.ablation.tune_lines import tuning_lines
from coordexp.campaign.preparation import check_plans
from coordexp.cluster.capacity import local_slots
from coordexp.config import load_config
from coordexp.config.keys import select
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.config.schema.fields import Key
from coordexp.coord_tokens.bins import NUM_COORDS
from coordexp.coord_tokens.grammar.sequence import target_length, text_encoder
from coordexp.coord_tokens.vocab import NUM_TEXT_BOX_TOKENS
from coordexp.data.images.patches import fed_sentence
from coordexp.data.sample import SPLITS, Split
from coordexp.data.split_data import SplitData
from coordexp.data.splits.check import between_splits
from coordexp.data.splits.near_pictures import near_sentence
from coordexp.detection.names.categories import CategoryIndex
from coordexp.doctor.checkpoint import Base, examine_checkpoint
from coordexp.doctor.data import (
    DataFacts,
    Pictures,
    examine_descriptions,
    examine_set,
    examine_split,
    of_both_splits,
)
from coordexp.doctor.limits import examine_limits
from coordexp.doctor.machine import Machine, examine_cluster, examine_disk, examine_experiment, examine_tracking
from coordexp.doctor.memory import EVALUATION, MemoryEstimate, SequenceSize, estimate, run_model
from coordexp.errors import DataError, ResourceError, counted
from coordexp.findings import Check, Finding, attempt, collect, failure, guarded, ok, size_text, warning
from coordexp.model.checkpoint.stored_model import Dimensions
from coordexp.model.families import family_of
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.train.setup.components import param_groups

_PROMPT_TOKENS = 30  # of Qwen's template around the default instruction, where no tokenizer says
_DESCRIPTION_TOKENS = 4  # of a category's name, where no tokenizer or file says
_ORDINARY_OBJECTS = 10  # COCO's images have seven on average


@dataclass(frozen=True)
class LongestBatch:
    """The batch that needs the most memory: what one device needs, and the longest sequence, which all of it are."""

    memory: MemoryEstimate
    sequence: SequenceSize


@dataclass(frozen=True)
class Examination:
    """All findings about an experiment, in the order of the checks; no longest batch where the model is unknown."""

    findings: tuple[Finding, ...]
    longest_batch: LongestBatch | None = None

    @property
    def would_start(self) -> bool:
        return all(finding.verdict != "failure" for finding in self.findings)


def examine(path: Path, overrides: list[str]) -> Examination:
    """Examine the experiment of a configuration file; loads no weights, and writes nothing but the experiment's set.

    Args:
        path: of the configuration.
        overrides: ``KEY=VALUE`` for it.
    """
    findings, longest = collect(_examine(path, overrides, Pictures()))
    return Examination(tuple(dict.fromkeys(findings)), longest)  # groups that differ in one thing share all others


def _examine(path: Path, overrides: list[str], pictures: Pictures) -> Check[LongestBatch | None]:
    loaded = yield from attempt("configuration", lambda: _checked_plans(path, overrides))
    if loaded is None:
        return None
    run, plans = loaded
    names = [plan.name for plan in plans]
    names = names if len(names) <= 6 else [*names[:5], f"and {len(names) - 5} more"]
    yield ok("configuration", f"{run.experiment.name}: {counted(len(plans), 'run')}, {', '.join(names)}")
    if run.ablation.tune is not None:
        planned = yield from attempt("tuning", lambda: tuning_lines(run))
        if planned:
            yield ok("tuning", " ".join(planned[0].split()))
    machine = Machine.here()
    yield ok("machine", machine.describe())
    # Both may wait for an answer: they do it while files are read.
    with ThreadPoolExecutor(2) as others:
        cluster = others.submit(collect, examine_cluster(run, len(machine.gpu_names)))
        tracking = others.submit(collect, examine_tracking(run))
        yield from examine_experiment(run)
        batches: list[LongestBatch] = []
        variants = {_without_loss(plan.config): plan.config for plan in reversed(plans)}
        for variant in reversed(variants.values()):  # every distinct pair of data and base
            found = yield from _examine_variant(variant, plans, machine, pictures)
            batches += [] if found is None else [found]
        yield from (*cluster.result()[0], *tracking.result()[0])
    return max(batches, key=lambda batch: batch.memory.peak, default=None)


def _checked_plans(path: Path, overrides: list[str]) -> tuple[ExperimentConfig, list[RunPlan]]:
    run = load_config(path, overrides)
    plans = plan_runs(run)
    check_plans(plans)
    return run, plans


def _without_loss(run: RunConfig) -> str:
    """Return what decides a run beside its loss and its seed, as text: no check here looks at them."""

    def keep(key: Key) -> bool:
        is_of_run = key.role in ("results", "rounding", "input") and key.name != "experiment.seed"
        return is_of_run and "loss" not in key.decides and not key.name.startswith("ablation.")

    return json.dumps(select(run, keep), sort_keys=True)


def _examine_variant(
    run: RunConfig, plans: list[RunPlan], machine: Machine, pictures: Pictures
) -> Check[LongestBatch | None]:
    facts: dict[Split, DataFacts] = {}
    check = yield from guarded("data", examine_set(run))
    for split in SPLITS:
        found = yield from examine_split(run, split, check, pictures)
        facts |= {} if found is None else {split: found}
    if "val" in facts and facts["val"].categories:
        categories = dict(enumerate(facts["val"].categories))
        yield from attempt("categories", lambda: CategoryIndex(categories, aliases=run.evaluation.aliases))
    read: dict[Split, SplitData] = {split: known.data for split, known in facts.items() if known.data is not None}
    if len(read) == 2:
        yield from (warning("val annotations", said) for said in between_splits(read["train"], read["val"]))
        sentence = "" if run.data.unit_by else near_sentence(read["train"].samples, read["val"].samples)
        if sentence:
            yield warning("val images", sentence)
    base = yield from guarded("checkpoint", examine_checkpoint(run))
    yield from examine_limits(run, read, None if base is None else base.encoding)
    if base is None:
        yield from examine_disk(plans, None)
        yield warning("memory", "not estimated: the model's shape is unknown")
        return None
    if base.encoding is not None:
        if "train" in read and (fed := fed_sentence(read["train"].samples, base.encoding.image_spec)):
            yield ok("pictures", fed)
        encode = text_encoder(base.encoding.tokenizer)
        for split, known in facts.items():
            yield from examine_descriptions(split, known, encode)
    yield from examine_disk(plans, (yield from attempt("disk", lambda: base.weights_bytes)))
    both = of_both_splits(facts.get("train"), facts.get("val"))
    return (yield from guarded("memory", _examine_memory(run, base, both, machine)))


def _examine_memory(
    run: RunConfig, base: Base, facts: DataFacts | None, machine: Machine
) -> Check[LongestBatch | None]:
    model = run_model(base.model, run, dtype=base.dtype, offset_ids=base.offset_ids)
    groups = yield from attempt("optimizer", lambda: param_groups(run, model))
    if groups is not None:
        every = sum(parameter.numel() for parameter in model.parameters())
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        yield ok("optimizer", f"{trained:,} of {every:,} parameters train, in {counted(len(groups), 'group')}")
    if base.is_damaged:
        # Sizes of pictures and prompt would be guesses, and a failure that follows from them a second, false one.
        yield warning("memory", "not estimated: tokenizer or image processor could not be read, as said above")
        return None
    longest = longest_sequence(run, base, facts, max_objects=run.data.max_objects)
    ordinary = longest_sequence(run, base, facts, max_objects=min(run.data.max_objects, _ORDINARY_OBJECTS))
    if longest.prompt + 1 > run.data.max_length and base.encoding is None:
        limit = "" if run.data.max_pixels else "; data.max_pixels limits that"
        yield warning("memory", f"not estimated: the tokens of a picture are known once the model is here{limit}")
        return None
    if longest.prompt + 1 > run.data.max_length:
        raise DataError(
            f"prompt and image take up to {longest.prompt} tokens, data.max_length is {run.data.max_length}; "
            "raise it, or lower data.max_pixels"
        )
    family = family_of(base.model.model_type, where=run.model.path)
    if not family.is_sized:
        whole = size_text(base.weights_bytes)
        loaded = f"; to expand and to merge loads all of it, {whole}" if family.on_disk == "converted" else ""
        yield warning("memory", f"not estimated for this family, {family.title}; its weights take {whole}{loaded}")
        return None
    on_gpu = run.cluster.gpus_per_worker > 0 or bool(machine.gpu_bytes)
    needed, usual = (estimate(model, run, size, on_gpu=on_gpu) for size in (longest, ordinary))
    yield judge_memory(run, needed, usual, machine, on_gpu=on_gpu)
    return LongestBatch(needed, longest)


def longest_sequence(run: RunConfig, base: Base, facts: DataFacts | None, *, max_objects: int) -> SequenceSize:
    """Return the longest sequence that can occur: the largest image, and as many objects as it may have."""
    image = base.num_image_tokens(facts.sizes_px if facts else frozenset(), run.data.max_pixels)
    prompt = image + (_PROMPT_TOKENS if base.encoding is None else len(base.encoding.prompt))
    description = _DESCRIPTION_TOKENS
    if base.encoding is not None and facts is not None and facts.categories:
        encode = base.encoding.tokenizer.encode
        description = max(len(encode(name, add_special_tokens=False)) for name in facts.categories)
    num_objects = max_objects if facts is None else min(max_objects, facts.max_objects)
    length = prompt + target_length(
        [description] * num_objects,
        run.data.structure,
        num_box_tokens=NUM_TEXT_BOX_TOKENS if run.text_arm else NUM_COORDS,
    )
    patches = image * Dimensions.of(base.model).vision.spatial_merge_size ** 2
    return SequenceSize(prompt, min(run.data.max_length, length), patches)


def judge_memory(
    run: RunConfig, needed: MemoryEstimate, usual: MemoryEstimate, machine: Machine, *, on_gpu: bool
) -> Finding:
    """Compare the memory that the longest and an ordinary batch need with what the device has."""
    share = min(1.0, run.cluster.gpus_per_worker) or 1.0
    at_once = 1 if on_gpu else local_slots(run) * run.cluster.num_workers
    there = share * min(machine.gpu_bytes, default=0) if on_gpu else machine.ram_bytes
    times = f" for each of {at_once} processes" if at_once > 1 else ""
    device = "a GPU" if on_gpu else "memory"
    sentence = (
        f"the longest batch needs about {size_text(needed.peak)} of {device}{times}, "
        f"an ordinary one {size_text(usual.peak)}"
    )
    if not there:
        return ok("memory", f"{sentence}; there is no GPU here to compare with")
    if at_once * needed.peak <= there:
        return ok("memory", f"{sentence}; {size_text(there)} are there")
    advice = _advice(run, needed)
    if at_once * usual.peak <= there:
        return warning("memory", f"{sentence}; {size_text(there)} are there, so the longest may not fit; {advice}")
    return failure("memory", ResourceError(f"{sentence}, but only {size_text(there)} are there; {advice}"))


def _advice(run: RunConfig, needed: MemoryEstimate) -> str:
    if max(needed.totals, key=needed.totals.__getitem__) == EVALUATION:
        return "lower evaluation.batch_size, evaluation.max_new_tokens or data.max_pixels"
    if not run.training.gradient_checkpointing:
        return "set training.gradient_checkpointing: true, or lower training.per_device_batch_size or data.max_pixels"
    return "lower training.per_device_batch_size or data.max_pixels"
