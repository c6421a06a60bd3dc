"""What is checked and made once for all runs of an experiment, before the first of them is trained."""

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
    """Refuse groups whose generated data differ, and terms that cannot be built. Nothing is read for this."""
    if len({plan.config.data.shapes.model_dump_json() for plan in plans}) > 1:
        raise ConfigError(
            "groups differ in data.shapes, but an experiment holds one generated data set; use two experiments"
        )
    for plan in plans:
        weighted_terms(plan.config)


def check_dry_run(plans: Sequence[RunPlan]) -> None:
    """Do every check of a run that needs no data, so that keys which contradict each other show in a dry run.

    The base is compared with the keys if its tokenizer and processor are on this machine. Nothing is downloaded, and
    no weight is read.
    """
    _check_keys(plans)
    distinct_bases = {deciding(plan.config, "base", "weights", "tokens"): plan.config for plan in plans}
    for config in distinct_bases.values():
        directory = local_checkpoint(config.model.path, revision=config.model.revision)
        if directory is not None:
            require(check_base(config, directory, weights=False))


def data_not_here(plans: Sequence[RunPlan]) -> list[str]:
    """Return a line for each annotation file and image folder that is not on this machine, with its key.

    None of them is read.
    """
    sentences: list[str] = []
    distinct_data = {deciding(plan.config, "data"): plan.config for plan in plans}
    for config in distinct_data.values():
        path = config.data.path
        if path is not None and not path.is_dir():
            sentences.append(f"{path}: there is no such folder; put the data there, or set data.path")
        else:
            sentences += missing_data(config)
    return [f"not here        {sentence}" for sentence in dict.fromkeys(sentences)]


def _check_keys(plans: Sequence[RunPlan]) -> None:
    """Refuse keys of a run that contradict each other, except those that Ray's executor checks on its cluster."""
    check_plans(plans)
    for plan in plans:
        config = plan.config
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
    """Prepare and check the data and the base of every run, once for each distinct pair of them.

    Args:
        plans: the runs.

    Returns:
        Data and base by the name of the run.
    """
    _check_keys(plans)
    by_keys: dict[str, PreparedExperiment] = {}
    by_run: dict[str, PreparedExperiment] = {}
    for plan in plans:
        deciding_keys = deciding(plan.config, "data", "base")
        if deciding_keys not in by_keys:
            by_keys[deciding_keys] = prepare_experiment(plan.config)
        by_run[plan.name] = by_keys[deciding_keys]
    return by_run


def steps_note(config: RunConfig, num_images: int) -> str | None:
    """Return a sentence on how many steps ``training.epochs`` are; None if the configuration gives steps."""
    if config.training.epochs is None:
        return None
    steps = config.with_steps(num_images).training.num_steps
    return (
        f"training.epochs: {config.training.epochs:g} over {num_images:,} training images is {steps:,} steps of "
        f"{config.global_batch_size:,}"
    )


def shared_metrics(config: RunConfig) -> dict[str, float | None]:
    """Return the codec ceiling of the validation split by its metric's name, and write it into the experiment."""
    ap = checked_ceiling(config, ground_truth_of_run(config))
    write_json(ExperimentFolder.of(config).codec_ceiling, {"AP": ap})
    return {"codec_ceiling/AP": ap}


def checked_ceiling(config: RunConfig, annotations: Path) -> float | None:
    """Return the codec ceiling of annotations, which is the AP of the ground truth after 1,000 bins and back.

    Args:
        config: with ``data.max_bad_fraction: 1`` any ceiling is accepted.
        annotations: COCO instances file.

    Returns:
        The AP; None if there is no object, so that it is undefined.

    Raises:
        DataError: if it is so low that no model could be good. Boxes of no extent do not count for this: a user may
            have some, and nobody can detect them.
    """
    ceiling = codec_ceiling(annotations)
    if ceiling is None or ceiling >= _LOWEST_CEILING or config.data.max_bad_fraction == 1:
        return ceiling
    ceiling_with_extent = codec_ceiling(annotations, only_with_extent=True)
    if ceiling_with_extent is not None and ceiling_with_extent < _LOWEST_CEILING:
        raise DataError(f"{annotations}: {_why_low(annotations, ceiling)}")
    return ceiling


def _why_low(annotations: Path, ceiling: float) -> str:
    """Return why ground truth scores a low AP against itself: AP's limit of detections, or the bins."""
    ceiling_without_bins = exact_ceiling(annotations)
    num_beyond, num_objects = num_beyond_limit(annotations)
    if num_beyond and ceiling_without_bins is not None and ceiling_without_bins < _LOWEST_CEILING:
        return (
            f"the ground truth itself scores an AP of {ceiling:.3f}: AP counts the first {MAX_DETECTIONS} detections "
            f"of a category in an image, and {num_beyond:,} of {num_objects:,} objects come after them, so no detector "
            "can score more. Cut the images into tiles; or data.max_bad_fraction: 1 accepts this ceiling"
        )
    return (
        f"the ground truth itself scores an AP of {ceiling:.3f} after 1,000 bins and back, so its boxes are too small "
        "for bins, or in another frame, such as pixels of another image size; data.max_bad_fraction: 1 takes them as "
        "they are"
    )


def fingerprint_of(config: RunConfig, shared: PreparedExperiment, *, tokens: str) -> Fingerprint:
    """Return the fingerprint of a run; ``tokens`` is the hash of its token stream."""
    files = shared.files | settings_hashes(config)
    return fingerprint(config, data=shared.data_hash, weights=shared.weights_hash, tokens=tokens, files=files)


def fingerprint_runs(
    plans: Sequence[RunPlan], prepared: Mapping[str, PreparedExperiment]
) -> tuple[dict[str, Fingerprint], list[KeyDifference]]:
    """Compute every run's fingerprint, and compare the fingerprints of all runs of the experiment.

    Runs that have begun are compared by the fingerprint they stored, so a change of code or data since then is found.
    This includes groups and seeds that this command does not run, since all of them come into one table.

    Args:
        plans: the runs.
        prepared: data and base by the name of the run.

    Returns:
        The fingerprints by the name of the run, and the differences between runs outside the factor.

    Raises:
        ComparisonError: if there are such differences and ``ablation.allow_differences`` is not set.
    """
    stream_hashes: dict[str, str] = {}
    current: dict[str, Fingerprint] = {}
    for plan in plans:
        deciding_keys = deciding(plan.config, "tokens")
        if deciding_keys not in stream_hashes:
            stream_hashes[deciding_keys] = token_stream_hash(plan.config, prepared[plan.name])
        current[plan.name] = fingerprint_of(plan.config, prepared[plan.name], tokens=stream_hashes[deciding_keys])

    stored: dict[str, Fingerprint] = {}
    for run in _runs_to_compare(plans):
        if run.fingerprint.is_file():
            stored[f"{run.name} (before)"] = _stored(run)
    ablation = plans[0].config.ablation
    if not ablation.allow_differences:
        check_comparable(stored | current, ablation.factor)
    return current, find_differences(stored | current, ablation.factor)


def _runs_to_compare(plans: Sequence[RunPlan]) -> list[RunFolder]:
    """Return the planned runs that have begun, and all other runs of the experiment that have taken a step."""
    begun_plans = [plan.folder for plan in plans if plan.has_begun()]
    planned_names = {run.name for run in begun_plans}
    similar_runs = ExperimentFolder.of(plans[0].config).begun_like(plans[0].name)
    further_runs = [run for run in similar_runs if run.name not in planned_names]
    return [*begun_plans, *(run for run in further_runs if has_taken_step(run.path))]


def rounding_notes(plans: Sequence[RunPlan], current: Mapping[str, Fingerprint]) -> list[str]:
    """Return a line for each key whose value differs from what runs began with, and which changes rounding only."""
    names_by_change: dict[str, list[str]] = {}
    for plan in plans:
        if has_taken_step(plan.run_dir) and plan.folder.fingerprint.is_file():
            changed_keys = rounding_only(diff(_stored(plan.folder), current[plan.name]))
            for key, (value_before, value) in changed_keys.items():
                names_by_change.setdefault(f"{key} is {value} and was {value_before}", []).append(plan.name)
    return [f"{change} in {', '.join(names)}: last digits may differ" for change, names in names_by_change.items()]


def write_run_files(plan: RunPlan, current: Fingerprint) -> None:
    """Write the configuration and the fingerprint of a run into its folder.

    A run that has taken a step keeps the fingerprint of its beginning, with what has changed since noted in it.
    """
    write_text(plan.folder.config, to_yaml(plan.config))
    path = plan.folder.fingerprint
    fingerprint_to_write = current
    if path.is_file() and has_taken_step(plan.run_dir):
        fingerprint_to_write = went_on(read_fingerprint(path), current)
    write_text(path, fingerprint_to_write.to_json() + "\n")


def _stored(run: RunFolder) -> Fingerprint:
    """Return the stored fingerprint of a run.

    Its entries on worker and machine count only once the run has taken a step: before that, it may start elsewhere.
    """
    stored = read_fingerprint(run.fingerprint)
    return stored if has_taken_step(run.path) else replace(stored, worker={}, machine={})


def needed_disk_bytes(plans: Sequence[RunPlan], weights_bytes: int) -> int:
    """Estimate how much these runs write: merged models, checkpoints, and some room.

    A merged model is as large as the base, and MLflow keeps a copy of one below its limit. A checkpoint holds the
    trained weights and Adam's two moments: with full tuning all weights in float32, for adapters about a fifth of the
    base.
    """
    needed_bytes = MIN_FREE_BYTES
    for plan in plans:
        config = plan.config
        checkpoint_bytes = 6 * weights_bytes if config.training.tuning == "full" else weights_bytes // 5
        num_checkpoints = config.training.keep_checkpoints + 1  # one more while the newest is written
        is_copied = weights_bytes <= config.tracking.max_artifact_mib * 2**20
        num_merged_models = 2 if is_copied else 1
        needed_bytes += num_merged_models * weights_bytes + num_checkpoints * checkpoint_bytes
    return needed_bytes
