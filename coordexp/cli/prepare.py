"""Write a data set: COCO or LVIS annotations as JSONL with a manifest, or generated shapes."""

import argparse
from pathlib import Path

from coordexp.cli.arguments import add_debug, number, positive, seed, settings_of
from coordexp.cli.console import output_console, show, stage_bars
from coordexp.cli.log_lines import add_verbosity
from coordexp.errors import DataError
from coordexp.shipped import command

HELP = "write a data set"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``coco``, ``lvis`` and ``shapes``, with their options, to ``coordexp prepare``."""
    kinds = parser.add_subparsers(required=True, metavar="DATA")
    for dialect in ("coco", "lvis"):
        kind = kinds.add_parser(dialect, help=f"{dialect.upper()} annotations as JSONL, with a manifest")
        kind.set_defaults(prepare=_run_annotations, dialect=dialect)
        add = kind.add_argument
        add("--annotations", type=Path, required=True, help="instances JSON")
        add("--images", type=Path, required=True, help="folder of the images")
        add("--output", type=Path, required=True, help="new folder for samples.jsonl and manifest.json")
        add("--max-objects", type=positive, help="keep this many of an image, the largest (default: all)")
        add("--ordering", choices=("top_left", "left_top", "random", "size", "centre"), default="top_left")
        add("--seed", type=seed, default=0, help="of --ordering random (%(default)s)")
        boxes = kind.add_mutually_exclusive_group()
        boxes.add_argument("--coord-tokens", action="store_true", help="boxes as <|coord_k|> strings")
        boxes.add_argument("--bins", action="store_true", help='boxes as integers 0..999, "bbox_format": "norm1000"')
        boxes.add_argument("--numbers", action="store_false", dest="coord_tokens", help="boxes in [0, 1] (the default)")
        declared = "coord tokens or bins, as its custom.coord_tokens.enabled says"
        boxes.add_argument("--config", metavar="FILE", help=declared)
        add("--max-bad-fraction", type=number(float, 0, 1), default=0.0, help="bad records to accept (%(default)s)")
        merge = "categories whose names read the same are one (data.categories.merge)"
        add("--merge-categories", action="store_true", help=merge)
        frame = "what boxes are of where EXIF turns a picture (data.boxes_in, %(default)s)"
        add("--boxes-in", choices=("auto", "shown", "stored"), default="auto", help=frame)
        add("--check-images", choices=("none", "names"), default="names", help="names: whether they are there")
    shapes = kinds.add_parser("shapes", help="generated coloured shapes, as COCO files and as JSONL")
    shapes.add_argument("--output", type=Path, required=True)
    shapes.add_argument("--num-train", type=positive, default=2400)
    shapes.add_argument("--num-val", type=positive, default=300)
    shapes.add_argument("--seed", type=seed, default=0)
    shapes.set_defaults(prepare=_run_shapes)
    for kind in kinds.choices.values():
        add_debug(kind, default=argparse.SUPPRESS)
        add_verbosity(kind, default=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> None:
    options.prepare(options)


def _run_annotations(options: argparse.Namespace) -> None:
    """Write annotations as JSONL with a manifest, and print what was counted and the next command."""
    from coordexp.cli.views import manifest_lines, manifest_table
    from coordexp.config import load_config
    from coordexp.data.reading import Reading
    from coordexp.data.sources.prepare import SAMPLES, PrepareSpec, prepare
    from coordexp.detection.ceiling import ceiling_of_arrays

    coord_tokens: bool = options.coord_tokens
    bins: bool = options.bins
    if options.config is not None:
        coord_tokens = load_config(options.config).custom.coord_tokens.enabled
        bins = not coord_tokens
    reading = Reading(options.boxes_in, options.merge_categories)
    spec = settings_of(PrepareSpec, options, coord_tokens=coord_tokens, bins=bins, reading=reading)
    with stage_bars():
        prepared = prepare(spec, ceiling=ceiling_of_arrays)

    console = output_console()
    state = "written" if prepared.is_new else "already made from these annotations with these options"
    show(console, f"{spec.output}: {state}")
    console.print(manifest_table(prepared.manifest))
    for line in manifest_lines(prepared.manifest):
        show(console, line)
    settings = [f"data.train_annotations={spec.output / SAMPLES}", f"data.train_images={spec.images}"]
    show(console, f"next: {command('train', '--config', 'experiments/coco_qwen3vl_4b.yaml', *settings)}")


def _run_shapes(options: argparse.Namespace) -> None:
    """Draw the shapes, and write their annotations as COCO files and as JSONL."""
    from coordexp.config.schema.data import Shapes
    from coordexp.data.sources.prepare import PrepareSpec, prepare
    from coordexp.data.sources.shapes import write_shapes
    from coordexp.detection.ceiling import ceiling_of_arrays

    output: Path = options.output
    # Only a generated set is replaced: any other folder may hold a user's work.
    is_free = not output.exists() or (output.is_dir() and not any(output.iterdir()))
    if not is_free and not (output / "shapes.json").is_file():
        raise DataError(f"{output}: exists and is no generated data set; expected a new or empty folder")

    shapes = Shapes(num_train=options.num_train, num_val=options.num_val, seed=options.seed)
    with stage_bars():
        write_shapes(output, shapes)
        for split in ("train", "val"):
            annotations = output / f"instances_{split}.json"
            spec = PrepareSpec(annotations=annotations, images=output / split, output=output / "jsonl" / split)
            prepare(spec, ceiling=ceiling_of_arrays)
    show(output_console(), f"{output}: {shapes.num_train} training and {shapes.num_val} validation images")
