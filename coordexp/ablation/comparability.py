"""What is checked between preparing an experiment and training its first run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from coordexp.config import Difference, Fingerprint, check_comparable, find_differences, to_yaml
from coordexp.config.identity.fingerprint import fingerprint
from coordexp.config.identity.parts import deciding
from coordexp.files import write_text
from coordexp.runs.experiment import check_disk, directory_bytes
from coordexp.runs.plan import RunPlan
from coordexp.train.setup.prepare import PreparedExperiment, token_stream_hash

MIN_FREE_BYTES = 256 * 2**20


def fingerprint_runs(
    plans: Sequence[RunPlan], prepared: Mapping[str, PreparedExperiment]
) -> tuple[dict[str, Fingerprint], list[Difference]]:
    """Return every run's fingerprint by its name, and in what else than the factor runs differ.

    Runs done before count with the fingerprint they stored, so code or data that changed since is found.

    Raises:
        ComparisonError: with all differences outside ``ablation.factor``, unless ``ablation.allow_differences``.
    """
    streams: dict[str, str] = {}
    current: dict[str, Fingerprint] = {}
    for plan in plans:
        shared = prepared[plan.name]
        parts = deciding(plan.config, "tokens")
        if parts not in streams:
            streams[parts] = token_stream_hash(plan.config, shared)
        current[plan.name] = fingerprint(
            plan.config, data=shared.data_hash, weights=shared.weights_hash, tokens=streams[parts]
        )
    known: dict[str, Fingerprint] = {}
    for plan in plans:
        path = plan.folder.fingerprint
        if plan.status() is not None and path.is_file():
            known[f"{plan.name} (before)"] = Fingerprint.from_json(path.read_text(encoding="utf-8"))
    ablation = plans[0].config.ablation
    if not ablation.allow_differences:
        check_comparable(known | current, ablation.factor)
    return current, find_differences(known | current, ablation.factor)


def write_run_files(plan: RunPlan, identity: Fingerprint) -> None:
    """Write what a run directory says of itself before it begins."""
    write_text(plan.folder.config, to_yaml(plan.config))
    if plan.status() is None or not (plan.folder.fingerprint).is_file():
        write_text(plan.folder.fingerprint, identity.to_json() + "\n")


def needed_disk_bytes(plans: Sequence[RunPlan], weights_bytes: int) -> int:
    """Return what these runs write, roughly: merged models, checkpoints, and some room.

    A merged model is as large as the base, and MLflow keeps a copy up to its limit. A checkpoint holds what
    trains and Adam's two moments of it: all weights in float32, or about a fifth of the base for adapters.

    Args:
        plans: runs that are not finished.
        weights_bytes: size of the base.
    """
    needed = MIN_FREE_BYTES
    for plan in plans:
        checkpoint = 6 * weights_bytes if plan.config.training.tuning == "full" else weights_bytes // 5
        copies = 2 if weights_bytes <= plan.config.tracking.max_artifact_mib * 2**20 else 1
        needed += copies * weights_bytes + (plan.config.training.keep_checkpoints + 1) * checkpoint
    return needed


def check_disk_for(plans: Sequence[RunPlan], base: Path) -> None:
    """Refuse to begin when the disk cannot hold the merged models and checkpoints of these runs.

    Raises:
        ResourceError: if less is free than :func:`needed_disk_bytes`.
    """
    check_disk(plans[0].run_dir, needed_bytes=needed_disk_bytes(plans, directory_bytes(base)))
