"""All checks of ``doctor``, one after the other. A failure of one check hides no other."""

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

# Guesses for as long as there is no tokenizer to count with, or no annotation file to read names from.
_PROMPT_TOKENS = 30  # Qwen's template around the default instruction
_DESCRIPTION_TOKENS = 4  # the name of a category
_ORDINARY_OBJECTS = 10  # of an ordinary image; COCO's have seven on average


@dataclass(frozen=True)
class LongestBatch:
    """The batch that needs the most memory: all of its sequences are as long as the longest.

    Attributes:
        memory: what one worker needs for it.
        sequence: the longest sequence.
    """

    memory: MemoryEstimate
    sequence: SequenceSize


@dataclass(frozen=True)
class Examination:
    """What was found out about an experiment.

    Attributes:
        findings: in the order of the checks.
        longest_batch: None if the model is not known.
    """

    findings: tuple[Finding, ...]
    longest_batch: LongestBatch | None = None

    @property
    def would_start(self) -> bool:
        """Whether no check failed."""
        return all(finding.verdict != "failure" for finding in self.findings)


def examine(path: Path, overrides: list[str]) -> Examination:
    """Examine the experiment of a configuration file.

    No weights are loaded, and nothing is written but the experiment's set of data.

    Args:
        path: the configuration file.
        overrides: ``KEY=VALUE`` for it.
    """
    findings, longest = collect(_examine(path, overrides, Pictures()))
    # Groups that differ in one thing repeat the findings about all others.
    return Examination(tuple(dict.fromkeys(findings)), longest)


def _examine(path: Path, overrides: list[str], pictures: Pictures) -> Check[LongestBatch | None]:
    """Do all checks; return the batch that needs the most memory of all groups."""
    loaded = yield from attempt("configuration", lambda: _checked_plans(path, overrides))
    if loaded is None:
        return None
    config, plans = loaded
    names = [plan.name for plan in plans]
    if len(names) > 6:
        names = [*names[:5], f"and {len(names) - 5} more"]
    yield ok("configuration", f"{config.experiment.name}: {counted(len(plans), 'run')}, {', '.join(names)}")
    if config.ablation.tune is not None:
        plan_lines = yield from attempt("tuning", lambda: tuning_lines(config))
        if plan_lines:
            yield ok("tuning", " ".join(plan_lines[0].split()))  # the first line says the plan, padded as in a table
    machine = Machine.here()
    yield ok("machine", machine.describe())

    # Ray and MLflow may take seconds to answer, or to time out. The files are read meanwhile.
    with ThreadPoolExecutor(2) as servers:
        cluster = servers.submit(collect, examine_cluster(config, len(machine.gpu_names)))
        tracking = servers.submit(collect, examine_tracking(config))
        yield from examine_experiment(config)
        batches: list[LongestBatch] = []
        for variant in _variants(plans):
            batch = yield from _examine_variant(variant, plans, machine, pictures)
            if batch is not None:
                batches.append(batch)
        cluster_findings, _ = cluster.result()
        tracking_findings, _ = tracking.result()
        yield from cluster_findings
        yield from tracking_findings
    return max(batches, key=lambda batch: batch.memory.peak, default=None)


def _checked_plans(path: Path, overrides: list[str]) -> tuple[ExperimentConfig, list[RunPlan]]:
    """Load a configuration, and check all of its runs against each other and by themselves."""
    config = load_config(path, overrides)
    plans = plan_runs(config)
    check_plans(plans)
    return config, plans


def _variants(plans: list[RunPlan]) -> list[RunConfig]:
    """Return the first run of each set of runs that differ in nothing but loss and seed: no check looks at those."""
    by_text: dict[str, RunConfig] = {}
    for plan in plans:
        by_text.setdefault(_without_loss(plan.config), plan.config)
    return list(by_text.values())


def _without_loss(run: RunConfig) -> str:
    """Return all keys that decide a run, but for its loss and its seed, as text."""

    def keep(key: Key) -> bool:
        is_of_run = key.role in ("results", "rounding", "input") and key.name != "experiment.seed"
        return is_of_run and "loss" not in key.decides and not key.name.startswith("ablation.")

    return json.dumps(select(run, keep), sort_keys=True)


def _examine_variant(
    run: RunConfig, plans: list[RunPlan], machine: Machine, pictures: Pictures
) -> Check[LongestBatch | None]:
    """Check data, checkpoint, disk and memory of one run; return its longest batch if its model is known."""
    facts = yield from _examine_data(run, pictures)
    splits: dict[Split, SplitData] = {}
    for split, facts_of_split in facts.items():
        if facts_of_split.data is not None:
            splits[split] = facts_of_split.data
    base = yield from guarded("checkpoint", examine_checkpoint(run))
    yield from examine_limits(run, splits, None if base is None else base.encoding)
    if base is None:
        yield from examine_disk(plans, None)
        yield warning("memory", "not estimated: the model's shape is unknown")
        return None

    if base.encoding is not None:
        sentence = ""
        if "train" in splits:
            sentence = fed_sentence(splits["train"].samples, base.encoding.image_spec)
        if sentence:
            yield ok("pictures", sentence)
        encode = text_encoder(base.encoding.tokenizer)
        for split, facts_of_split in facts.items():
            yield from examine_descriptions(split, facts_of_split, encode)

    weights_bytes = yield from attempt("disk", lambda: base.weights_bytes)
    yield from examine_disk(plans, weights_bytes)
    facts_of_both = of_both_splits(facts.get("train"), facts.get("val"))
    return (yield from guarded("memory", _examine_memory(run, base, facts_of_both, machine)))


def _examine_data(run: RunConfig, pictures: Pictures) -> Check[dict[Split, DataFacts]]:
    """Check both splits, and that they fit together; return the facts of those that could be read."""
    facts: dict[Split, DataFacts] = {}
    check = yield from guarded("data", examine_set(run))
    for split in SPLITS:
        facts_of_split = yield from examine_split(run, split, check, pictures)
        if facts_of_split is not None:
            facts[split] = facts_of_split

    if "val" in facts and facts["val"].categories:
        categories = dict(enumerate(facts["val"].categories))
        yield from attempt("categories", lambda: CategoryIndex(categories, aliases=run.evaluation.aliases))

    train = facts["train"].data if "train" in facts else None
    val = facts["val"].data if "val" in facts else None
    if train is not None and val is not None:
        for sentence in between_splits(train, val):
            yield warning("val annotations", sentence)
        # data.unit_by says which images are of one scene, and keeps them in one split. Only without it look-alikes are
        # searched for, which takes up to a minute.
        near = "" if run.data.unit_by else near_sentence(train.samples, val.samples)
        if near:
            yield warning("val images", near)
    return facts


def _examine_memory(
    run: RunConfig, base: Base, facts: DataFacts | None, machine: Machine
) -> Check[LongestBatch | None]:
    """Check the optimizer's groups, and whether the longest batch fits into the device's memory."""
    model = run_model(base.model, run, dtype=base.dtype, offset_ids=base.offset_ids)
    groups = yield from attempt("optimizer", lambda: param_groups(run, model))
    if groups is not None:
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        num_trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        in_groups = f"in {counted(len(groups), 'group')}"
        yield ok("optimizer", f"{num_trained:,} of {num_parameters:,} parameters train, {in_groups}")
    if base.is_damaged:
        # Sizes of pictures and prompt would be guesses. A failure that follows from a guess would be a false one.
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
    """Return the longest sequence that can occur: the largest image, and as many objects as an image may have.

    Args:
        run: its limits, and how it writes boxes.
        base: the model. If its tokenizer is not here, tokens are guessed.
        facts: of the data; None if they could not be read.
        max_objects: no image has more objects.
    """
    sizes_px = frozenset[tuple[int, int]]() if facts is None else facts.sizes_px
    num_image_tokens = base.num_image_tokens(sizes_px, run.data.max_pixels)
    num_text_tokens = _PROMPT_TOKENS if base.encoding is None else len(base.encoding.prompt)
    prompt = num_image_tokens + num_text_tokens

    longest_name = _DESCRIPTION_TOKENS
    if base.encoding is not None and facts is not None and facts.categories:
        encode = base.encoding.tokenizer.encode
        longest_name = max(len(encode(name, add_special_tokens=False)) for name in facts.categories)
    num_objects = max_objects if facts is None else min(max_objects, facts.max_objects)
    target = target_length(
        [longest_name] * num_objects,
        run.data.structure,
        num_box_tokens=NUM_TEXT_BOX_TOKENS if run.text_arm else NUM_COORDS,
    )
    patches = num_image_tokens * Dimensions.of(base.model).vision.spatial_merge_size ** 2
    return SequenceSize(prompt, min(run.data.max_length, prompt + target), patches)


def judge_memory(
    run: RunConfig, needed: MemoryEstimate, usual: MemoryEstimate, machine: Machine, *, on_gpu: bool
) -> Finding:
    """Compare the memory that the longest and an ordinary batch need with what the device has.

    Args:
        run: its share of a GPU, and what could be changed if the memory is too small.
        needed: of the longest batch.
        usual: of an ordinary batch. If that fits and the longest does not, it is a warning.
        machine: its memory.
        on_gpu: whether the run uses a GPU.
    """
    if on_gpu:
        device = "a GPU"
        num_processes = 1
        share = min(1.0, run.cluster.gpus_per_worker) or 1.0  # several runs may share a GPU
        available_bytes = share * min(machine.gpu_bytes, default=0)
    else:
        device = "memory"
        num_processes = local_slots(run) * run.cluster.num_workers
        available_bytes = machine.ram_bytes
    times = f" for each of {num_processes} processes" if num_processes > 1 else ""
    sentence = (
        f"the longest batch needs about {size_text(needed.peak)} of {device}{times}, "
        f"an ordinary one {size_text(usual.peak)}"
    )
    if not available_bytes:
        return ok("memory", f"{sentence}; there is no GPU here to compare with")
    available = size_text(available_bytes)
    if num_processes * needed.peak <= available_bytes:
        return ok("memory", f"{sentence}; {available} are there")
    advice = _advice(run, needed)
    if num_processes * usual.peak <= available_bytes:
        return warning("memory", f"{sentence}; {available} are there, so the longest may not fit; {advice}")
    return failure("memory", ResourceError(f"{sentence}, but only {available} are there; {advice}"))


def _advice(run: RunConfig, needed: MemoryEstimate) -> str:
    """Return what to change so that the phase which needs the most memory needs less."""
    if max(needed.totals, key=needed.totals.__getitem__) == EVALUATION:
        return "lower evaluation.batch_size, evaluation.max_new_tokens or data.max_pixels"
    if not run.training.gradient_checkpointing:
        return "set training.gradient_checkpointing: true, or lower training.per_device_batch_size or data.max_pixels"
    return "lower training.per_device_batch_size or data.max_pixels"
