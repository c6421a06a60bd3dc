"""Find objects in pictures with a trained checkpoint: boxes, scores and distributions as a table, JSON and a drawing.

    coordexp predict --model runs/tiny/C-s0/merged PICTURE...
    coordexp predict --model runs/tiny/C-s0/checkpoints/step_000360 PICTURE...    # an adapter on the base it names

Writes DIR/predictions.json, and a drawing DIR/NAME.png of each picture: thick boxes of the mean coordinates, thin boxes
of the most likely bins.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.cli.arguments import positive, settings_of
from coordexp.cli.console import output_console, progress_bar, say, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from coordexp.evaluate.predict import Prediction

HELP = "objects in pictures, by a trained checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp predict``."""
    parser.add_argument("pictures", nargs="+", type=Path, metavar="PICTURE", help="image files")
    parser.add_argument("--model", required=True, help="a merged checkpoint, an adapter, a hub id, or embedded")
    parser.add_argument("--base", help="of an adapter: directory or hub id (default: what the adapter names)")
    parser.add_argument("--output", type=Path, default=Path("predictions"), help="folder of the files (%(default)s)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what is printed (%(default)s)")
    ways = ("constrained", "free")
    whole = "constrained: under the object grammar, so that each box is whole (%(default)s)"
    parser.add_argument("--decoding", choices=ways, default=ways[0], help=whole)
    parser.add_argument("--max-new-tokens", type=positive, default=512, help="of an answer (%(default)s)")
    parser.add_argument("--batch-size", type=positive, default=16)
    parser.add_argument("--max-pixels", type=positive, help="image size limit (default: that of training)")
    parser.add_argument("--prompt", help="the instruction (default: that of training, else the usual one)")
    parser.add_argument("--threads", dest="num_threads", type=positive, help="CPU threads; it can change last digits")


def run(options: argparse.Namespace) -> None:
    """Find the objects of each picture, write and draw them, and print them."""
    from coordexp.evaluate.checkpoint import check_output, slower, unlike_training
    from coordexp.evaluate.predict import checkpoint_of, predict_with, predictions_json, turned
    from coordexp.evaluate.settings import EvaluationSettings
    from coordexp.files import write_text

    check_output(options.output)
    model, adapter = checkpoint_of(options.model, options.base)
    settings = settings_of(EvaluationSettings, options, decoding=(options.decoding,), model=model, adapter=adapter)
    for sentence in [*unlike_training(settings), *turned(options.pictures)]:
        say(f"warning: {sentence}")
    for sentence in slower(settings):
        say(sentence)
    with progress_bar("pictures", len(options.pictures)) as advance:
        predictions = predict_with(settings, options.pictures, on_pictures=advance)

    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    document = predictions_json(predictions)
    write_text(output / "predictions.json", document)
    drawings = [output / f"{name}.png" for name in _names(options.pictures)]
    for prediction, drawing in zip(predictions, drawings, strict=True):
        _draw(prediction, drawing)

    console = output_console()
    if options.format == "json":
        show(console, document)
        return
    for prediction, drawing in zip(predictions, drawings, strict=True):
        _print(prediction, options, console)
        show(console, f"drawn in {drawing}\n")
    show(console, f"distributions and all numbers: {output / 'predictions.json'}")


def _names(pictures: "Sequence[Path]") -> list[str]:
    """Return a name for the drawing of each picture, with a number in front if two pictures are called the same."""
    stems = [picture.stem for picture in pictures]
    if len(set(stems)) == len(stems):
        return stems
    return [f"{index}-{stem}" for index, stem in enumerate(stems)]


def _draw(prediction: "Prediction", path: Path) -> None:
    """Draw the boxes of one picture, both of each object, into a file."""
    from coordexp.cli.views import draw
    from coordexp.data.images.pixels import read_image

    labelled_boxes = [
        (f"{detected.desc} {detected.score:.2f}", (detected.expected_px, detected.argmax_px))
        for detected in prediction.objects
    ]
    picture = read_image(prediction.picture)
    draw(picture, (prediction.width, prediction.height), labelled_boxes).save(path)


def _print(prediction: "Prediction", options: argparse.Namespace, console: "Console") -> None:
    """Print the table of one picture, and what was wrong with its answer."""
    from coordexp.cli.views import prediction_table

    console.print(prediction_table(prediction))
    # Under the grammar no piece can be malformed.
    if options.decoding == "free":
        counts = Counter(prediction.malformed)
        kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items())
        in_brackets = f" ({kinds})" if kinds else ""
        show(console, f"malformed pieces of the answer: {len(prediction.malformed)}{in_brackets}")
    if prediction.truncated:
        show(console, f"the answer was cut at {options.max_new_tokens} tokens; --max-new-tokens sets the limit")
