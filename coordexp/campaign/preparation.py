"""What is checked and made once for all runs of an experiment, before the first one is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coordexp.config import Fingerprint, KeyDifference, check_comparable, find_differences, to_yaml
from coordexp.config.identity.differences import diff, rounding_only, went_on
from coordexp.config.identity.fingerprint import fingerprint, read_fingerprint
from coordexp.config.keys import deciding
from coordexp.config.schema import RunConfig
from coordexp.detection.boxes import MAX_DETECTIONS
from coordexp.detection.ceiling import codec_ceiling, exact_ceiling, num_beyond_limit
from coordexp.errors import ConfigError, DataError
from coordexp.files import write_json, write_text
from coordexp.findings import require
from coordexp.model.checkpoint.directory import local_checkpoint
from coordexp.runs.executor import InlineExecutor
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import has_taken_step
from coordexp.train.setup.base import check_base
from coordexp.train.setup.data import ground_truth_of_run
from coordexp.train.setup.door import missing_data
from coordexp.train.setup.prepare import PreparedExperiment, prepare_experiment, settings_hashes, token_stream_hash
from coordexp.train.setup.strategy import check_strategy
from coordexp.train.setup.weighted_terms import weighted_terms

MIN_FREE_BYTES = 256 * 2**20
_LOWEST_CEILING = 0.9


def check_plans(plans: Sequence[RunPlan]) -> None:
    """Check what can be checked before anything is read."""
    if len({plan.config.data.shapes.model_dump_json() for plan in plans}) > 1:
        raise ConfigError(
            "groups differ in data.shapes, but an experiment holds one generated data set; use two experiments"
        )
    for plan in plans:
        weighted_terms(plan.config)


def check_dry_run(plans: Sequence[RunPlan]) -> None:
    """Do every check of a run that needs no data, so that keys which contradict each other show in a dry run.

    The base is compared with the keys if its tokenizer and processor are on this machine; nothing is downloaded, and
    no weight is read.
    """
    _check_keys(plans)
    for config in {deciding(plan.config, "base", "weights", "tokens"): plan.config for plan in plans}.values():
        directory = local_checkpoint(config.model.path, revision=config.model.revision)
        if directory is not None:
            require(check_base(config, directory, weights=False))


def data_not_here(plans: Sequence[RunPlan]) -> list[str]:
    """Return what of the runs' annotations and image folders is not on this machine, with its key; none is read."""
    found: dict[str, None] = {}
    for config in {deciding(plan.config, "data"): plan.config for plan in plans}.values():
        path = config.data.path
        if path is not None and not path.is_dir():
            found[f"{path}: there is no such folder; put the data there, or set data.path"] = None
            continue
        found |= dict.fromkeys(missing_data(config))
    return [f"not here        {sentence}" for sentence in found]


def _check_keys(plans: Sequence[RunPlan]) -> None:
    """Refuse keys of a run that contradict each other; the executor checks the rest."""
    check_plans(plans)
    for config in (plan.config for plan in plans):
        check_strategy(config)
        if config.cluster.executor == "inline":
            InlineExecutor().check(config)
        elif config.model.attn_implementation == "flash_attention_2" and not config.cluster.gpus_per_worker:
            raise ConfigError(
                "model.attn_implementation: flash_attention_2 needs a GPU, and cluster.gpus_per_worker is 0; give a "
                "worker one, or use sdpa"
            )
        if config.trains_offset and config.training.optimizer == "multimodal":
            raise ConfigError(
                "training.optimizer: multimodal has no group for the coord offsets, so that their learning rates would "
                "have no effect; use training.optimizer: multimodal_coord_offset, or custom.coord_offset.enabled: false"
            )


def prepare_all(plans: Sequence[RunPlan]) -> dict[str, PreparedExperiment]:
    """Prepare and check the data and base of every run, once for each distinct pair; return them by run name."""
    _check_keys(plans)
    made: dict[str, PreparedExperiment] = {}
    prepared: dict[str, PreparedExperiment] = {}
    for plan in plans:
        parts = deciding(plan.config, "data", "base")
        if parts not in made:
            made[parts] = prepare_experiment(plan.config)
        prepared[plan.name] = made[parts]
    return prepared


def steps_note(config: RunConfig, num_images: int) -> str | None:
    """Return a sentence on the steps that ``training.epochs`` amounts to; None where the steps are given."""
    if config.training.epochs is None:
        return None
    steps = config.with_steps(num_images).training.num_steps
    return (
        f"training.epochs: {config.training.epochs:g} over {num_images:,} training images is {steps:,} steps of "
        f"{config.global_batch_size:,}"
    )


def shared_metrics(config: RunConfig) -> dict[str, float | None]:
    """Return the codec ceiling of the validation split, which the experiment's folder keeps too."""
    ap = checked_ceiling(config, ground_truth_of_run(config))
    write_json(ExperimentFolder.of(config).codec_ceiling, {"AP": ap})
    return {"codec_ceiling/AP": ap}


def checked_ceiling(config: RunConfig, annotations: Path) -> float | None:
    """Return the codec ceiling of annotations, None where undefined; refuse one so low that no model can be good."""
    ceiling = codec_ceiling(annotations)
    if ceiling is None or ceiling >= _LOWEST_CEILING or config.data.max_bad_fraction == 1:
        return ceiling
    of_boxes_with_extent = codec_ceiling(annotations, only_with_extent=True)
    if of_boxes_with_extent is not None and of_boxes_with_extent < _LOWEST_CEILING:
        raise DataError(f"{annotations}: {_why_low(annotations, ceiling)}")
    return ceiling


def _why_low(annotations: Path, ceiling: float) -> str:
    """Return why ground truth scores a low AP against itself: AP's own limit, or the bins."""
    exact = exact_ceiling(annotations)
    num_beyond, num_objects = num_beyond_limit(annotations)
    if num_beyond and exact is not None and exact < _LOWEST_CEILING:
        return (
            f"the ground truth itself scores an AP of {ceiling:.3f}: AP counts the first {MAX_DETECTIONS} detections "
            f"of a category in an image, and {num_beyond:,} of {num_objects:,} objects come after them, so no detector "
            "can score more. Cut the images into tiles; or data.max_bad_fraction: 1 accepts this ceiling"
        )
    return (
        f"the ground truth itself scores an AP of {ceiling:.3f} after 1,000 bins and back, so its boxes are too small "
        "for bins, or in another frame; data.max_bad_fraction: 1 takes them as they are"
    )


def fingerprint_of(config: RunConfig, shared: PreparedExperiment, *, tokens: str) -> Fingerprint:
    files = shared.files | settings_hashes(config)
    return fingerprint(config, data=shared.data_hash, weights=shared.weights_hash, tokens=tokens, files=files)


def fingerprint_runs(
    plans: Sequence[RunPlan], prepared: Mapping[str, PreparedExperiment]
) -> tuple[dict[str, Fingerprint], list[KeyDifference]]:
    """Return every run's fingerprint by its name, and the differences between runs outside the factor.

    Runs done before count with the fingerprint they stored, so code or data that changed since is found; also those of
    groups and seeds that an earlier command ran and this one does not, since they stand in one table. Differences are
    refused unless ``ablation.allow_differences``.
    """
    streams: dict[str, str] = {}
    current: dict[str, Fingerprint] = {}
    for plan in plans:
        parts = deciding(plan.config, "tokens")
        if parts not in streams:
            streams[parts] = token_stream_hash(plan.config, prepared[plan.name])
        current[plan.name] = fingerprint_of(plan.config, prepared[plan.name], tokens=streams[parts])
    # What has begun: of the plans, and of others what has taken a step.
    planned = {plan.name: plan.folder for plan in plans if plan.has_begun()}
    others = [run for run in ExperimentFolder.of(plans[0].config).begun_like(plans[0].name) if run.name not in planned]
    begun = [*planned.values(), *(run for run in others if has_taken_step(run.path))]
    known = {f"{run.name} (before)": _stored(run) for run in begun if run.fingerprint.is_file()}
    ablation = plans[0].config.ablation
    if not ablation.allow_differences:
        check_comparable(known | current, ablation.factor)
    return current, find_differences(known | current, ablation.factor)


def rounding_notes(plans: Sequence[RunPlan], current: Mapping[str, Fingerprint]) -> list[str]:
    """Return a line for each key that runs have had another value of, and that changes rounding only."""
    runs: dict[str, list[str]] = {}
    for plan in plans:
        if has_taken_step(plan.run_dir) and plan.folder.fingerprint.is_file():
            changed = rounding_only(diff(_stored(plan.folder), current[plan.name]))
            for key, (before, now) in changed.items():
                runs.setdefault(f"{key} is {now} and was {before}", []).append(plan.name)
    return [f"{change} in {', '.join(names)}: last digits may differ" for change, names in runs.items()]


def write_run_files(plan: RunPlan, identity: Fingerprint) -> None:
    write_text(plan.folder.config, to_yaml(plan.config))
    file = plan.folder.fingerprint
    if file.is_file() and has_taken_step(plan.run_dir):
        identity = went_on(read_fingerprint(file), identity)
    write_text(file, identity.to_json() + "\n")


def _stored(run: RunFolder) -> Fingerprint:
    """Return the fingerprint of a run that has begun; what its worker found counts from its first step on."""
    found = read_fingerprint(run.fingerprint)
    return found if has_taken_step(run.path) else replace(found, worker={}, machine={})


def needed_disk_bytes(plans: Sequence[RunPlan], weights_bytes: int) -> int:
    """Return what these runs write, roughly: merged models, checkpoints, and some room.

    A merged model is as large as the base, and MLflow keeps a copy up to its limit. A checkpoint holds what
    trains and Adam's two moments of it: all weights in float32, or about a fifth of the base for adapters.
    """
    needed = MIN_FREE_BYTES
    for plan in plans:
        checkpoint = 6 * weights_bytes if plan.config.training.tuning == "full" else weights_bytes // 5
        copies = 2 if weights_bytes <= plan.config.tracking.max_artifact_mib * 2**20 else 1
        needed += copies * weights_bytes + (plan.config.training.keep_checkpoints + 1) * checkpoint
    return needed
