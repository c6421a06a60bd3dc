"""Evaluate a checkpoint on a COCO data set, without training: detections and AP.

    coordexp evaluate --model DIR --annotations JSON --images DIR
    coordexp evaluate --model DIR --annotations JSON --images DIR --num-workers 2
    coordexp evaluate --model Qwen/Qwen3-VL-4B-Instruct --answer qwen-json --annotations JSON --images DIR
    ray job submit --working-dir . -- python ray_jobs/evaluate.py --model /shared/merged ... --num-workers 8

--generations reads answers that another engine wrote, such as vLLM on the merged checkpoint: each answer is read in one
pass, for scores, expected boxes and everything else. The file answers.jsonl of any evaluation is such a file, too.

With --num-workers the images are shared out over workers on Ray, each with its own copy of the model. The files are the
same, whatever the number of workers.

--answer gemini_2_5, paligemma, florence_2 and others read what another model wrote, from --generations alone, and write
detections.json, which compare and report --with take as a row (pip install "coordexp[vlm]").

--answer qwen-json asks an untouched Qwen3-VL in its own words, without training: the vendor's detection prompt with the
categories of the annotation file, answered by JSON with coordinates in thousandths (Qwen2.5-VL: in pixels of the
resized picture). The files and tables are the same; decoding is free, and a box has one reading, so that argmax and
expected are equal.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.cli.arguments import add_aliases, number, positive, read_aliases, settings_of
from coordexp.cli.console import output_console, progress_bar, show, stage_bars
from coordexp.errors import ConfigError
from coordexp.limits import MAX_COUNT

if TYPE_CHECKING:
    from rich.console import Console

    from coordexp.evaluate.evaluation import EvaluationData
    from coordexp.evaluate.settings import EvaluationSettings
    from coordexp.metrics import Decoding
    from coordexp.runs.folder import EvaluationFolder

HELP = "COCO AP of a checkpoint"
VLM_ANSWERS = (
    "gemini_2_0", "gemini_2_5", "gemini_3_5", "paligemma", "florence_2", "deepseek_vl_2", "qwen_3_vl", "moondream",
)  # fmt: skip
"""What supervision calls the forms of answers that need the size of the picture alone."""
_OF_A_MODEL = {
    "--model": "model", "--adapter": "adapter", "--decoding": "decoding", "--score": "score",
    "--batch-size": "batch_size", "--max-new-tokens": "max_new_tokens", "--max-pixels": "max_pixels",
    "--prompt": "prompt", "--boxes-in": "boxes_in", "--merge-categories": "merge_categories",
    "--threads": "num_threads", "--num-workers": "num_workers", "--check-engine": "check_engine",
}  # fmt: skip
"""Options of an evaluation that asks or reads with a model of its own, and their fields."""
NUM_CHECKED = 64
"""Images of ``--check-engine``, unless ``--num-images`` says another number."""
_PIPE_WIDTH = 160  # of the table of box metrics
_COORD_TOKENS = 512
_JSON_TOKENS = 2048  # an object takes about 30 tokens, where it takes 8 in coord tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", help="embedded, a directory or a hub id (default: what --adapter names)")
    add("--adapter", type=Path, help="a directory that training saved")
    add("--base", help="the checkpoint that --adapter was trained on, as --model is (default: what the adapter names)")
    add("--annotations", type=Path, required=True, help="COCO instances JSON")
    add("--images", type=Path, required=True, help="folder of the images")
    add("--output", type=Path, help="folder of the results (default: eval/NAME-ANNOTATIONS beside the checkpoint)")
    add("--num-images", type=positive, help="at most this many, spread over the number of objects, always the same")
    form = "the form of an answer: coord tokens, digits of plain text, or the JSON of an untouched Qwen3-VL "
    form += "(default: coord tokens where the tokenizer has them, else text)"
    form += "; or that of another model, read from --generations"
    add("--answer", choices=("coord", "text", "qwen-json", *VLM_ANSWERS), metavar="FORM", help=form)
    made = 'answers made elsewhere, read in one pass each instead of generated: JSONL of {"image_id": 7, "text": ...}, '
    made += 'or of "token_ids", or with "file_name"; output of vLLM and of OpenAI batches; "finish_reason": "length" '
    made += "marks one that was cut"
    add("--generations", type=Path, help=made)
    checked = f"compare these answers with our own of {NUM_CHECKED} images: texts, coordinates and AP; writes nothing"
    add("--check-engine", type=Path, metavar="GENERATIONS", help=checked)
    ways = "default: both; free for --answer qwen-json; with --generations, how they were made (default: free)"
    add("--decoding", nargs="+", choices=("constrained", "free"), help=ways)
    scores = ("coord", "desc", "coord_desc", "constant")
    add("--score", choices=scores, help="of a detection (default: coord_desc)")
    add("--batch-size", type=positive, help="images answered together (default: 16)")
    add("--max-new-tokens", type=positive, help="of an answer (default: 512; 2048 for --answer qwen-json)")
    add("--max-pixels", type=positive, help="image size limit (default: that of training)")
    prompt = "the instruction (default: that of training, else the usual one); for --answer qwen-json the question, "
    add("--prompt", help=prompt + "in which {categories} stands for their names")
    frame = "what boxes are of where EXIF turns a picture (data.boxes_in, default: auto)"
    add("--boxes-in", choices=("auto", "shown", "stored"), help=frame)
    merge = "categories whose names read the same are one (data.categories.merge)"
    add("--merge-categories", action="store_true", help=merge)
    bad = "largest accepted share of bad records, which are left out (data.max_bad_fraction, default: 0)"
    add("--max-bad-fraction", type=number(float, 0, 1), default=0.0, help=bad)
    add_aliases(parser)
    add("--threads", dest="num_threads", type=positive, help="CPU threads of a process; it can change last digits")
    add("--num-workers", type=positive, help="processes on Ray, each with the model (default: no Ray)")
    add("--cpus-per-worker", type=positive, help="with --num-workers: CPUs, and threads, of each (1)")
    add(
        "--gpus-per-worker",
        type=number(float, 0, MAX_COUNT),
        help="with --num-workers: GPUs of each; a part of one is legal (0)",
    )


def run(options: argparse.Namespace) -> None:
    if options.num_workers is None and (options.cpus_per_worker, options.gpus_per_worker) != (None, None):
        raise ConfigError("--cpus-per-worker and --gpus-per-worker have no effect without --num-workers")
    if options.answer in VLM_ANSWERS:
        _read_texts(options)
    elif options.check_engine is not None:
        _check_engine(options)
    else:
        _evaluate(options)


def _evaluate(options: argparse.Namespace) -> None:
    """Answer the images by a checkpoint, or read given answers with it; print and write the metrics."""
    from coordexp.cli.views import print_metrics
    from coordexp.evaluate.checkpoint import check_output, default_output, make_set, slower, unlike_training
    from coordexp.files import write_json
    from coordexp.runs.folder import EvaluationFolder

    console, settings = output_console(pipe_width=_PIPE_WIDTH), _settings(options)
    folder = EvaluationFolder((options.output or default_output(settings)).resolve())
    check_output(folder.path)
    for sentence in [*(f"warning: {found}" for found in unlike_training(settings)), *slower(settings)]:
        show(console, sentence)
    with stage_bars():
        data_set = make_set(settings, folder.data)
    settings = replace(settings, set_path=data_set.path)
    evaluate = _here if options.num_workers is None else _on_ray
    data, metrics = evaluate(options, settings, folder, console)

    for sentence in data.remarks:
        show(console, sentence)
    write_json(folder.metrics, metrics, indent=1)
    print_metrics(metrics, settings.decoding, num_images=len(data.samples), console=console)
    for sentence in _remarks(settings, folder, data, metrics):
        show(console, sentence)
    show(console, f"written to {folder.path}")


def _here(
    options: argparse.Namespace, settings: "EvaluationSettings", folder: "EvaluationFolder", console: "Console"
) -> "tuple[EvaluationData, dict[str, float]]":
    """Evaluate in this process."""
    from coordexp.evaluate.checkpoint import open_data, open_evaluation

    data = open_data(settings)
    evaluation = open_evaluation(settings, data)
    with progress_bar("evaluating", len(data.samples) * len(settings.decoding)) as advance:
        return data, evaluation.run(folder, on_images=advance)


def _on_ray(
    options: argparse.Namespace, settings: "EvaluationSettings", folder: "EvaluationFolder", console: "Console"
) -> "tuple[EvaluationData, dict[str, float]]":
    """Evaluate in several processes on Ray; the data are read while it starts."""
    from coordexp.cluster.session import ray_session

    cpus: int = options.cpus_per_worker or 1
    with ray_session(threads=cpus, debug=options.debug) as ready:
        from coordexp.cluster.evaluate import Workers, evaluate_on_ray
        from coordexp.evaluate.checkpoint import open_data

        data = open_data(settings)
        ready.result()
        workers = Workers(options.num_workers, cpus=cpus, gpus=options.gpus_per_worker or 0.0)
        with progress_bar("evaluating", len(data.samples) * len(settings.decoding)) as advance:
            metrics = evaluate_on_ray(
                settings, data, workers, output=folder, on_images=advance, on_wait=lambda line: show(console, line)
            )
    return data, metrics


def _remarks(
    settings: "EvaluationSettings", folder: "EvaluationFolder", data: "EvaluationData", metrics: "dict[str, float]"
) -> list[str]:
    """Return what the metrics do not say: names that are no category, texts that are no answer, boxes in pixels."""
    from coordexp.evaluate.answers import unknown_sentence, unread_sentence
    from coordexp.evaluate.checkpoint import scale_warning

    sentences: list[str | None] = []
    for way in settings.decoding:
        sentences.append(unknown_sentence(folder.decoding(way), way, metrics))
        if settings.generations is not None:
            sentences.append(unread_sentence(way, metrics, form=settings.answer or "coord tokens or text"))
    sentences.append(scale_warning(settings, folder, data))
    return [sentence for sentence in sentences if sentence is not None]


def _check_engine(options: argparse.Namespace) -> None:
    """Compare the answers of another engine with our own of the same checkpoint and images."""
    from coordexp.evaluate.check_engine import check_engine

    if options.generations is not None or options.num_workers is not None or options.output is not None:
        raise ConfigError(
            "--check-engine FILE reads FILE itself, in this process, and writes nothing; leave out --generations, "
            "--num-workers and --output"
        )
    if len(options.decoding or ()) > 1:
        raise ConfigError("--check-engine: a file of answers is one decoding; expected --decoding constrained or free")
    options.generations = options.check_engine
    options.num_images = options.num_images or NUM_CHECKED
    settings, console = _settings(options), output_console(pipe_width=_PIPE_WIDTH)
    with progress_bar("answering", 2 * options.num_images) as advance:
        check, data = check_engine(settings, on_images=advance)
    for sentence in (*data.remarks, *check.lines(options.check_engine)):
        show(console, sentence)


def _read_texts(options: argparse.Namespace) -> None:
    from coordexp.cli.views import print_metrics
    from coordexp.detection.box_evaluation import BoxEvaluation
    from coordexp.detection.detections import write_detections
    from coordexp.detection.ground_truth import read_ground_truth
    from coordexp.detection.metrics import measure
    from coordexp.evaluate.vlm_answers import read_vlm_answers

    if options.generations is None:
        raise ConfigError(f"--answer {options.answer} reads texts of that model; expected --generations FILE.jsonl")
    without_effect = [name for name, field in _OF_A_MODEL.items() if getattr(options, field) not in (None, False)]
    if without_effect:
        raise ConfigError(
            f"{', '.join(without_effect)}: without effect on --answer {options.answer}, which reads the texts that "
            "another model has written; leave it out"
        )
    console, whole = output_console(pipe_width=_PIPE_WIDTH), read_ground_truth(options.annotations)
    truth = whole
    if options.num_images is not None:
        truth = whole.on_images(_chosen_images(options))
    aliases = read_aliases(options.aliases)
    found, remarks = read_vlm_answers(
        options.answer, options.generations, whole, options.images, aliases=aliases, wanted=truth.sizes_px.keys()
    )
    metrics = {f"free/expected/{name}": value for name, value in measure(BoxEvaluation(truth, found)).items()}
    print_metrics(metrics, ("free",), num_images=len(truth.sizes_px), console=console)
    for sentence in (*truth.size_remarks, *remarks):
        show(console, sentence)
    name = f"{options.answer}-{options.generations.stem}"
    if options.num_images is not None:
        name += f"-{options.num_images}"
    output: Path = options.output or options.generations.parent / name
    output.mkdir(parents=True, exist_ok=True)
    path = output / "detections.json"
    write_detections(path, found)
    show(console, f"written to {path}; as a row: coordexp compare --annotations ... {options.answer}={path}")


def _chosen_images(options: argparse.Namespace) -> list[int]:
    """Return the ids of the images that any other evaluation with ``--num-images`` answers."""
    from coordexp.evaluate.checkpoint import open_data
    from coordexp.evaluate.settings import EvaluationSettings

    settings = EvaluationSettings(annotations=options.annotations, images=options.images, num_images=options.num_images)
    return [sample.image_id for sample in open_data(settings).samples]


def _settings(options: argparse.Namespace) -> "EvaluationSettings":
    from coordexp.data.reading import Reading
    from coordexp.evaluate.settings import EvaluationSettings

    model = _model(options)
    is_json = options.answer == "qwen-json"
    free_only = is_json or options.generations is not None
    decoding: list[Decoding] = options.decoding or (["free"] if free_only else ["constrained", "free"])
    return settings_of(
        EvaluationSettings,
        options,
        score=options.score or "coord_desc",
        batch_size=options.batch_size or 16,
        max_new_tokens=options.max_new_tokens or (_JSON_TOKENS if is_json else _COORD_TOKENS),
        decoding=tuple(dict.fromkeys(decoding)),
        aliases=read_aliases(options.aliases),
        reading=Reading(
            options.boxes_in or "auto", options.merge_categories, max_bad_fraction=options.max_bad_fraction
        ),
        model=model,
    )


def _model(options: argparse.Namespace) -> str:
    """Return the checkpoint that is evaluated, or on which the adapter is."""
    from coordexp.model.checkpoint.adapter import named_base

    model: str | None = options.model
    base: str | None = options.base
    adapter: Path | None = options.adapter
    if model is not None and base is not None:
        raise ConfigError(f"--model {model} and --base {base} both name the checkpoint; expected one of them")
    if base is not None and adapter is None:
        raise ConfigError(f"--base {base} is for an adapter; expected --adapter FOLDER beside it, or --model")
    given = base if model is None else model
    if given is not None:
        return given
    if adapter is None:
        raise ConfigError("expected --model, a checkpoint, or --adapter, which names its own; got neither")
    return named_base(adapter)
