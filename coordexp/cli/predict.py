"""Find objects in pictures with a trained checkpoint: boxes, scores and distributions as a table, JSON and a drawing.

    coordexp predict --model runs/tiny/C-s0/merged PICTURE...
    coordexp predict --model runs/tiny/C-s0/checkpoints/step_000360 PICTURE...    # an adapter on the base it names

Writes DIR/predictions.json, and for each picture DIR/NAME.png with its boxes: of the means, and thinner of the most
likely bins.
"""

import argparse
from collections import Counter
from pathlib import Path

from coordexp.cli.arguments import positive, settings_of
from coordexp.cli.console import output_console, progress_bar, say, show

HELP = "objects in pictures, by a trained checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    from coordexp.cli.views import draw, prediction_table
    from coordexp.data.images.pixels import read_image
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
        found = predict_with(settings, options.pictures, on_pictures=advance)
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    text = predictions_json(found)
    write_text(output / "predictions.json", text)
    is_distinct = len({picture.stem for picture in options.pictures}) == len(options.pictures)
    names = [picture.stem if is_distinct else f"{at}-{picture.stem}" for at, picture in enumerate(options.pictures)]
    drawn = [output / f"{name}.png" for name in names]
    for item, png in zip(found, drawn, strict=True):
        boxes = [(f"{it.desc} {it.score:.2f}", (it.expected_px, it.argmax_px)) for it in item.objects]
        draw(read_image(item.picture), (item.width, item.height), boxes).save(png)
    console = output_console()
    if options.format == "json":
        show(console, text)
        return
    for item, png in zip(found, drawn, strict=True):
        console.print(prediction_table(item))
        if options.decoding == "free":
            kinds = ", ".join(f"{number} {kind}" for kind, number in Counter(item.malformed).items()).replace("_", " ")
            show(console, f"malformed pieces of the answer: {len(item.malformed)}{f' ({kinds})' if kinds else ''}")
        if item.truncated:
            show(console, f"the answer was cut at {options.max_new_tokens} tokens; --max-new-tokens sets the limit")
        show(console, f"drawn in {png}\n")
    show(console, f"distributions and all numbers: {output / 'predictions.json'}")
