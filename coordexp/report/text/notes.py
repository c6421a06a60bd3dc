"""Sentences around the tables: what is compared, where runs stand, how to read the numbers, and the next commands."""

import json
import shlex
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import fmean

from coordexp.config.identity.fingerprint import read_fingerprint
from coordexp.data.sources.recorded import recorded_data
from coordexp.data.units import FEW_UNITS, counted_images
from coordexp.errors import ComparisonError, counted
from coordexp.evaluate.generated_by import Generator, engine_sentences
from coordexp.metrics import BOX_KINDS, BoxKind
from coordexp.report.records.artifacts import final_detections
from coordexp.report.records.data import ExperimentData, RunRecord, by_group, state_text
from coordexp.report.study.about import About
from coordexp.report.study.study import Study
from coordexp.report.table import Table
from coordexp.report.text.limits import limit_notes
from coordexp.report.text.tables import MIN_OBJECTS, UNDEFINED, num_objects
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.shipped import python_command
from coordexp.statistics.intervals import FEW_IMAGES, FEWEST_IMAGES
from coordexp.statistics.results import Comparison
from coordexp.tracking.address import sqlite_path, without_secrets
from coordexp.tracking.charts import runs_address

ABOUT = "What is compared"
CLIPPING_DIFFERS = 0.25  # of the steps, between two groups
_READ_BY: dict[BoxKind, str] = {
    "argmax": "argmax (the most likely bin)",
    "expected": "expectation (the mean over bins)",
}
_IN_DIGITS = "coordinates written as digits of plain text, no coord tokens; boxes read as written"
_NOTATION = (
    "Each sum is divided by the number of its units in the step. z are the logits, y is the true token, lse the "
    "log-sum-exp; c and b are the expected and the true coordinates as fractions of the image side; s is the softmax "
    "over the 1,000 coord tokens (t at a temperature), CDF_s its sum up to a bin, q the target around the true bin, "
    "and m the share that coord tokens have of the whole vocabulary (m' at a temperature)."
)


def about_lines(study: Study) -> list[tuple[str, str]]:
    """Return a pair for each group, its name and its loss, then the facts; none where nothing is known."""
    if study.about is None:
        return []
    readings = study.data.readings
    lines: list[tuple[str, str]] = []
    for group, terms in study.about.groups.items():
        read_by = _IN_DIGITS if group in study.about.in_digits else f"boxes read by {_READ_BY[readings[group]]}"
        summands = [
            weighted.term.name if weighted.weight == 1 else f"{weighted.weight:g} x {weighted.term.name}"
            for weighted in terms
        ]
        lines.append((group, f"loss = {' + '.join(summands)}; {read_by}"))
    lines += study.about.facts
    if study.fairness is not None and study.fairness.rounding:
        lines.append(("last digits", f"may differ by {'; '.join(study.fairness.rounding)}"))
    return lines


def terms_table(about: About | None) -> Table | None:
    """Return each loss term of any group in words and formula; None if none is known."""
    if about is None:
        return None
    rows: dict[tuple[str, str], tuple[str, ...]] = {}
    for weighted_terms in about.groups.values():
        for weighted in weighted_terms:
            term = weighted.term
            knobs = ", ".join(f"{name} {value}" for name, value in term.model_dump().items()) or UNDEFINED
            words = (type(term).__doc__ or "").partition("\n")[0]
            formula = term.formula.replace("`", "")
            rows[term.name, knobs] = (term.name, words, formula, term.unit.replace("_", " "), knobs)
    if not rows:
        return None
    heads = ("loss term", "in words", "sum over a batch", "divided by the number of", "settings")
    return Table.of("The loss terms", heads, list(rows.values()), [_NOTATION])


def summary(data: ExperimentData) -> str:
    """Return how many groups, seeds and runs there are and where they stand."""
    num_files = sum(run.foreign is not None for run in data.runs)
    files = f"{counted(num_files, 'file')} of detections"
    if not data.trained:
        return f"{counted(len(data.groups), 'detector')}, {files}"
    states = Counter(run.state for run in data.trained)
    counts = [f"{count} {state}" for state, count in states.items() if state != "running"]
    if states["running"]:
        places = (state_text(run).partition(", ")[2] for run in data.trained if run.state == "running")
        counts.insert(0, f"{states['running']} running ({', '.join(places)})")
    seeds = sorted({run.seed for run in data.trained})
    seed_word = "seed" if len(seeds) == 1 else "seeds"
    groups = f"{counted(len(by_group(data.trained)), 'group')} x {seed_word} {', '.join(map(str, seeds))}"
    text = f"{groups}; {counted(len(data.trained), 'run')}: {', '.join(counts)}"
    return f"{text}; {files}" if num_files else text


def study_summary(study: Study) -> str:
    """Return :func:`summary`, and what is drawn in the place of images where that is something else."""
    text = summary(study.data)
    return text if study.units is None else f"{text}; {study.units.sentence}"


def study_notes(study: Study) -> list[str]:
    """Return the notes of a study: those on its runs, below those on its units."""
    return [*([] if study.units is None else study.units.remarks), *notes(study.data)]


def remarks(data: ExperimentData) -> list[str]:
    """Return what is to be said of files of detections."""
    sentences: list[str] = []
    for run in data.runs:
        if run.foreign is not None:
            sentences += run.foreign.remarks
    return sentences


def engine_notes(data: ExperimentData) -> list[str]:
    """Say which engine generated the answers behind the rows, and caution where rows had different ones.

    Seeds of a group that share an engine are one row.
    """
    generators: dict[str, Generator] = {}
    for group, runs in data.groups.items():
        generator_by_run = {run.name: run.generator for run in runs}
        if len({repr(generator) for generator in generator_by_run.values()}) == 1:
            generators[group] = runs[0].generator
        else:
            generators |= generator_by_run
    return engine_sentences(generators)


def notes(data: ExperimentData) -> list[str]:
    """Return what a reader must know to read the tables rightly, one sentence each."""
    sentences = remarks(data)
    if any(_is_lvis(run) for run in data.runs):
        sentences.append(
            "AP is LVIS's: federated, 300 detections an image; AP_rare, AP_common and AP_frequent are means over its "
            "categories by frequency."
        )
    sentences += engine_notes(data)
    undefined = f'"{UNDEFINED}": not defined (no ground truth of that size), or not there yet.'
    if not data.trained:
        return [*sentences, undefined]
    evaluated = [run for run in data.trained if run.headline in run.metrics] or data.trained
    if any(len({run.seed for run in runs}) == 1 for runs in by_group(evaluated).values()):
        sentences.append(
            "A group with one seed is a checkpoint: what is said of it is about that, not about its loss. "
            "More seeds: ablation.seeds=[0,1,2]."
        )
    sentences += [*clipping_note(data), *limit_notes(data), _reading_note(data)]
    if data.codec_ceiling is not None:
        sentences.append(
            f"Codec ceiling: AP {data.codec_ceiling:.3f} is what the ground truth itself scores after 1000 bins and "
            "back."
        )
    sentences.append(undefined)
    is_tuned = any(key.startswith("ablation.tune.") for run in data.trained for key in run.params)
    if len({run.group for run in data.trained}) > 1 and not is_tuned:
        sentences.append(
            "No group was tuned: defaults are compared with defaults. ablation.tune tunes each of them first."
        )
    if len(data.groups) > 1:
        sentences.append("The total loss has other terms in every group: compare the losses beside it.")
    return [*sentences, *data.others]


def _reading_note(data: ExperimentData) -> str:
    """Return which boxes of each trained group are its headline, and how another reading is asked for."""
    groups_by_kind: dict[BoxKind, list[str]] = {kind: [] for kind in BOX_KINDS}
    for group, runs in by_group(data.trained).items():
        groups_by_kind[runs[0].reading].append(group)
    readings = [f"{', '.join(groups)} by {_READ_BY[kind]}" for kind, groups in groups_by_kind.items() if groups]
    way_on = "Another one needs no new run: report --reading GROUP=argmax, or =expected."
    return f"Own reading: {'; '.join(readings)}. {way_on}"


def clipping_note(data: ExperimentData) -> list[str]:
    """Return a warning where clipping scales down the steps of one group far more often than those of another."""
    shares: dict[str, float] = {}
    for group, runs in data.groups.items():
        measured = [run.metrics["clipped_fraction"] for run in runs if "clipped_fraction" in run.metrics]
        if measured:
            shares[group] = fmean(measured)
    if not shares or max(shares.values()) - min(shares.values()) < CLIPPING_DIFFERS:
        return []
    most_first = sorted(shares.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{group} {share:.0%}" for group, share in most_first)
    return [
        "WARNING: groups do not take equal steps, although every key is equal: gradients were clipped at "
        f"{listed} of them; compare the groups again with training.max_grad_norm above the largest norm."
    ]


def bucket_notes(study: Study) -> tuple[str, ...]:
    """Return on how many objects AP by size rests, below a table with its columns; nothing where that is not known."""
    sizes = next((breakdown.by_size.num_gt for breakdown in study.breakdowns.values()), {})
    listed = ", ".join(f"AP_{name} {num_objects(number)}" for name, number in sizes.items())
    return (f"What AP by size rests on: {listed}.",) if listed else ()


def sample_notes(comparison: Comparison) -> tuple[str, ...]:
    """Return what to know of intervals of AP where there are few images, or categories are in few of them."""
    num_images, num_units = comparison.num_images, comparison.num_units
    images = counted_images(num_images, num_units)
    # What is drawn decides how much is known: units, or images where there are none.
    num_drawn, drawn = (num_images, "images") if num_units is None else (num_units, "units")
    sentences: list[str] = []
    if num_drawn < FEWEST_IMAGES:
        sentences.append(f"From {images} nothing can be known of others: no interval or difference.")
    elif num_units is not None and num_units < FEW_UNITS:
        sentences.append(f"{images}: fewer than {FEW_UNITS} units are too few to rely on an interval or a p-value.")
    elif num_images < MIN_OBJECTS:
        sentences.append(f"{num_images} images are too few to rely on an interval.")
    of_a_category = comparison.images_a_category
    if of_a_category is not None and of_a_category < FEW_IMAGES and num_drawn >= FEWEST_IMAGES:
        sentences.append(
            f"Too few {drawn}: a category is in {of_a_category:.1f} of the {num_drawn:,} on average (harmonic mean). "
            f"Intervals are then too narrow, and hold for AP on as many {drawn}, not on more."
        )
    return tuple(sentences)


def next_commands(data: ExperimentData) -> list[tuple[str, str]]:
    """Return pairs of what a command shows and the command."""
    commands = [("Every run, curve and file", mlflow_ui(data))] if data.trained else []
    evaluated = next((run for run in data.runs if run.headline in run.metrics), None)
    if evaluated is not None:
        judge = "lvis-api, which needs numpy below 1.24," if _is_lvis(evaluated) else "pycocotools"
        commands.append((f"AP of {evaluated.name} again, by {judge} alone", _recompute(data, evaluated)))
    return commands


def mlflow_ui(data: ExperimentData) -> str:
    """Return what opens MLflow's pages on the runs: a command for a database, the address of a server."""
    path = sqlite_path(data.uri)
    if path is None:
        chosen = "#/experiments?workflowType=machine_learning"  # without the query MLflow shows the view of agents
        if data.experiment_id:
            chosen = runs_address(data.experiment_id)
        return f"open {without_secrets(data.uri).rstrip('/')}/{chosen} in a browser"
    names = [data.name] if data.experiment_id else []
    if path == Path("runs/mlflow.db").absolute():
        return python_command("-m", "coordexp", "ui", *names)
    return python_command("-m", "coordexp", "ui", *names, "--tracking-uri", without_secrets(data.uri))


def _is_lvis(run: RunRecord) -> bool:
    return run.params.get("data.format") == "lvis"


def _recompute(data: ExperimentData, run: RunRecord) -> str:
    """Return the lines that get a run's detections from where they are and give them to the reference alone."""
    lines: list[str] = []
    if run.foreign is not None:
        detections_path, truth_path = str(run.foreign.detections), str(run.foreign.annotations)
    else:
        detections_path, truth_path = _places_of(data, run)
        if run.run_id:  # MLflow has the file, wherever this report is read
            artifact = final_detections(run)
            detections_path = f"{run.name}/{artifact.name}"
            options = ("--run-id", run.run_id, "--artifact-path", artifact, "--dst-path", run.name)
            download = python_command("-m", "mlflow", "artifacts", "download", *options)
            lines.append(f"MLFLOW_TRACKING_URI={shlex.quote(without_secrets(data.uri))} {download}")
    if truth_path.endswith(".gz"):  # which neither judge unpacks
        packed_path, truth_path = truth_path, f"{run.name}/annotations.json"
        lines.append(f"gzip -dc {shlex.quote(packed_path)} > {shlex.quote(truth_path)}")
    program = _judging_program(truth_path, detections_path, is_lvis=_is_lvis(run))
    return "\n".join([*lines, python_command("-c", program)])


def _places_of(data: ExperimentData, run: RunRecord) -> tuple[str, str]:
    """Return where a run's detections and its ground truth lie on the machine that ran it."""
    folder = RunFolder(Path(run.run_dir))
    experiment = folder.experiment if run.run_dir else ExperimentFolder(Path("runs") / data.name)
    data_hash: str | None = None
    if folder.fingerprint.is_file():  # the folder may hold the set of a tuning split beside the set of the runs
        with suppress(ComparisonError):  # reported where runs are compared
            data_hash = read_fingerprint(folder.fingerprint).data
    recorded = recorded_data(run.params, data_hash=data_hash, data_dir=experiment.data)
    truth_path = "annotations.json" if recorded is None else str(recorded.shown_ground_truth)
    return str(folder.path / final_detections(run)), truth_path


def _judging_program(truth_path: str, detections_path: str, *, is_lvis: bool) -> str:
    """Return Python that prints AP of a file of detections by the reference alone."""
    truth, detections = json.dumps(truth_path), json.dumps(detections_path)
    if is_lvis:
        return f'from lvis import LVISEval; e = LVISEval({truth}, {detections}, "bbox"); e.run(); e.print_results()'
    return (
        "from pycocotools.coco import COCO; from pycocotools.cocoeval import COCOeval; "
        f'gt = COCO({truth}); e = COCOeval(gt, gt.loadRes({detections}), "bbox"); '
        "e.evaluate(); e.accumulate(); e.summarize()"
    )
