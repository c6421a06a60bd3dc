"""Evaluate a checkpoint on a COCO data set, without training: detections and AP.

    coordexp evaluate --model DIR --annotations JSON --images DIR
    coordexp evaluate --model DIR --annotations JSON --images DIR --num-workers 2
    coordexp evaluate --model Qwen/Qwen3-VL-4B-Instruct --answer qwen-json --annotations JSON --images DIR
    ray job submit --working-dir . -- python ray_jobs/evaluate.py --model /shared/merged ... --num-workers 8

--generations reads answers that another engine wrote, such as vLLM on the merged checkpoint. The model then reads each
answer in one pass, for scores and expected boxes. The file answers.jsonl of any evaluation can be read in this way.

With --num-workers the images are divided over workers on Ray, each with its own copy of the model. The files are the
same for any number of workers.

--answer gemini_2_5, paligemma, florence_2 and others read what another model wrote, from --generations alone. They
write detections.json, which compare and report --with take as a row (pip install "coordexp[vlm]").

--answer qwen-json evaluates a Qwen3-VL that was not trained here. It asks the vendor's own detection prompt with the
categories of the annotation file, and reads JSON with coordinates in thousandths (Qwen2.5-VL: in pixels of the resized
picture). The files and tables are the same. Decoding is free, and argmax and expected boxes are equal, because the JSON
says each box only once.
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

    from coordexp.evaluate.evaluation import EvaluationImages
    from coordexp.evaluate.settings import EvaluationSettings
    from coordexp.metrics import Decoding
    from coordexp.runs.folder import EvaluationFolder

HELP = "COCO AP of a checkpoint"
VLM_ANSWERS = (
    "gemini_2_0", "gemini_2_5", "gemini_3_5", "paligemma", "florence_2", "deepseek_vl_2", "qwen_3_vl", "moondream",
)  # fmt: skip
"""Forms of answers that need no more than a picture's size to be read, as the library supervision calls them."""
_OF_A_MODEL = {
    "--model": "model", "--adapter": "adapter", "--decoding": "decoding", "--score": "score",
    "--batch-size": "batch_size", "--max-new-tokens": "max_new_tokens", "--max-pixels": "max_pixels",
    "--prompt": "prompt", "--boxes-in": "boxes_in", "--merge-categories": "merge_categories",
    "--threads": "num_threads", "--num-workers": "num_workers", "--check-engine": "check_engine",
}  # fmt: skip
"""Options that have an effect only if a model of this process answers or reads, and their fields."""
NUM_CHECKED = 64
"""How many images ``--check-engine`` compares, unless ``--num-images`` says another number."""
_PIPE_WIDTH = 160  # of the table of box metrics
_COORD_TOKENS = 512
_JSON_TOKENS = 2048  # an object takes about 30 tokens, where it takes 8 in coord tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp evaluate``."""
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
    form = 'answers made elsewhere, read in one pass each instead of generated: JSONL of {"image_id": 7, "text": ...}, '
    form += 'or of "token_ids", or with "file_name"; output of vLLM and of OpenAI batches; "finish_reason": "length" '
    form += "marks one that was cut"
    add("--generations", type=Path, help=form)
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
    """Evaluate a checkpoint, measure the texts of another model, or compare an engine's answers with our own."""
    if options.num_workers is None and (options.cpus_per_worker, options.gpus_per_worker) != (None, None):
        raise ConfigError("--cpus-per-worker and --gpus-per-worker have no effect without --num-workers")
    if options.answer in VLM_ANSWERS:
        _read_texts(options)
    elif options.check_engine is not None:
        _check_engine(options)
    else:
        _evaluate(options)


def _evaluate(options: argparse.Namespace) -> None:
    """Answer the images with a checkpoint, or read given answers with it; print and write the metrics."""
    from coordexp.cli.views import print_metrics
    from coordexp.evaluate.checkpoint import check_output, default_output, make_set, slower, unlike_training
    from coordexp.files import write_json
    from coordexp.runs.folder import EvaluationFolder

    console = output_console(pipe_width=_PIPE_WIDTH)
    settings = _settings(options)
    folder = EvaluationFolder((options.output or default_output(settings)).resolve())
    check_output(folder.path)
    for sentence in unlike_training(settings):
        show(console, f"warning: {sentence}")
    for sentence in slower(settings):
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
) -> "tuple[EvaluationImages, dict[str, float]]":
    """Evaluate in this process."""
    from coordexp.evaluate.checkpoint import open_data, open_evaluation

    data = open_data(settings)
    evaluation = open_evaluation(settings, data)
    with progress_bar("evaluating", len(data.samples) * len(settings.decoding)) as advance:
        return data, evaluation.run(folder, on_images=advance)


def _on_ray(
    options: argparse.Namespace, settings: "EvaluationSettings", folder: "EvaluationFolder", console: "Console"
) -> "tuple[EvaluationImages, dict[str, float]]":
    """Evaluate in several processes on Ray; the data are read while Ray starts."""
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
    settings: "EvaluationSettings", folder: "EvaluationFolder", data: "EvaluationImages", metrics: "dict[str, float]"
) -> list[str]:
    """Return sentences on what the metrics do not show.

    These are: described objects that are no category, texts that could not be read, and boxes in an unlikely scale.
    """
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
    """Compare the answers of another engine with our own, on the same checkpoint and images."""
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
    settings = _settings(options)
    console = output_console(pipe_width=_PIPE_WIDTH)
    # Twice: the engine's answers are read, and our own are generated.
    with progress_bar("answering", 2 * options.num_images) as advance:
        check, data = check_engine(settings, on_images=advance)
    for sentence in (*data.remarks, *check.lines(options.check_engine)):
        show(console, sentence)


def _read_texts(options: argparse.Namespace) -> None:
    """Measure and write the boxes in the texts of another model, without a model of our own."""
    from coordexp.cli.views import print_metrics
    from coordexp.detection.box_evaluation import MatchedBoxes
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

    console = output_console(pipe_width=_PIPE_WIDTH)
    whole_truth = read_ground_truth(options.annotations)
    truth = whole_truth
    if options.num_images is not None:
        truth = whole_truth.on_images(_chosen_images(options))
    # The file may answer more images than are measured. So it is read against the whole ground truth.
    detections, remarks = read_vlm_answers(
        options.answer,
        options.generations,
        whole_truth,
        options.images,
        aliases=read_aliases(options.aliases),
        wanted=truth.sizes_px.keys(),
    )
    measured = measure(MatchedBoxes(truth, detections))
    metrics = {f"free/expected/{name}": value for name, value in measured.items()}
    print_metrics(metrics, ("free",), num_images=len(truth.sizes_px), console=console)
    for sentence in (*truth.size_remarks, *remarks):
        show(console, sentence)

    name = f"{options.answer}-{options.generations.stem}"
    if options.num_images is not None:
        name += f"-{options.num_images}"
    output: Path = options.output or options.generations.parent / name
    output.mkdir(parents=True, exist_ok=True)
    path = output / "detections.json"
    write_detections(path, detections)
    show(console, f"written to {path}; as a row: coordexp compare --annotations ... {options.answer}={path}")


def _chosen_images(options: argparse.Namespace) -> list[int]:
    """Return the ids of the images that every evaluation with this ``--num-images`` answers."""
    from coordexp.evaluate.checkpoint import open_data
    from coordexp.evaluate.settings import EvaluationSettings

    settings = EvaluationSettings(annotations=options.annotations, images=options.images, num_images=options.num_images)
    return [sample.image_id for sample in open_data(settings).samples]


def _settings(options: argparse.Namespace) -> "EvaluationSettings":
    """Return the settings of an evaluation, with the default of each option that was not typed."""
    from coordexp.data.reading import Reading
    from coordexp.evaluate.settings import EvaluationSettings

    model = _model(options)
    is_json = options.answer == "qwen-json"
    is_free_alone = is_json or options.generations is not None
    default_decoding: list[Decoding] = ["free"] if is_free_alone else ["constrained", "free"]
    decoding: list[Decoding] = options.decoding or default_decoding
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
    """Return the checkpoint that is evaluated, or that the adapter was trained on.

    Raises:
        ConfigError: if the options name none, or two.
    """
    from coordexp.model.checkpoint.adapter import named_base

    model: str | None = options.model
    base: str | None = options.base
    adapter: Path | None = options.adapter
    if model is not None and base is not None:
        raise ConfigError(f"--model {model} and --base {base} both name the checkpoint; expected one of them")
    if base is not None and adapter is None:
        raise ConfigError(f"--base {base} is for an adapter; expected --adapter FOLDER beside it, or --model")
    if model is not None:
        return model
    if base is not None:
        return base
    if adapter is None:
        raise ConfigError("expected --model, a checkpoint, or --adapter, which names its own; got neither")
    return named_base(adapter)
