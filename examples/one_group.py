"""One group in a loop of your own: plain torch, the losses of coordexp, and nothing of its service (docs/python.md).

python examples/one_group.py                         the drawn pictures beside this file, on the embedded model
python examples/one_group.py FOLDER --model Qwen/Qwen3-VL-2B-Instruct --max-pixels 640000
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import coordexp

COCO_TINY = Path(__file__).parent / "coco_tiny"
# The names of the terms, and what each weighs. All terms: docs/LOSSES.md.
TERMS = {"text_ce": 1.0, "coord_ce": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", type=Path, default=COCO_TINY, help="a folder of pictures and labels")
    parser.add_argument("--model", default="embedded", help="embedded, a folder or a hub id")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-pixels", type=int, default=96 * 96, help="the embedded model knows 96 x 96")
    parser.add_argument("--output", type=Path, default=Path("one_group"), help="folder of the two COCO files")
    options = parser.parse_args()
    torch.manual_seed(0)

    # Data: any format, with the checks and repairs of a run.
    data = coordexp.read_data(options.data)
    for remark in data["val"].remarks:
        print(remark)

    # Model: coord tokens in the vocabulary, one offset for each, and everything else frozen.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = coordexp.load(options.model, device=device)
    model, tokenizer = loaded.model, loaded.processor.tokenizer
    vocab = coordexp.expand_vocab(model, tokenizer, init="numeric")
    model.requires_grad_(False)
    offsets = coordexp.install_coord_offset_adapter(model, coord_ids=vocab.coord_ids, tokenizer=tokenizer)

    # Loss: a weighted sum of terms, each divided by its units in the batch.
    term_classes = coordexp.loss_terms()
    weighted_terms = [coordexp.WeightedTerm(term_classes[name](), weight) for name, weight in TERMS.items()]
    criterion = coordexp.Criterion(weighted_terms)

    loader = DataLoader(
        data["train"],
        batch_size=options.batch_size,
        shuffle=True,
        collate_fn=partial(coordexp.collate, loaded=loaded, max_pixels=options.max_pixels),
    )
    optimizer = torch.optim.AdamW(offsets.parameters(), lr=1e-2)
    model.train()
    step = 0
    while step < options.steps:
        for batch in loader:
            loss, means = coordexp.loss_of_batch(loaded, batch, criterion)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            terms = "  ".join(f"{name} {mean.item():.3f}" for name, mean in means.items())
            print(f"step {step}/{options.steps}  loss {loss.item():.3f}  {terms}")
            if step == options.steps:
                break

    # Answers under the object grammar, and COCO's AP on them.
    answers = coordexp.generate(loaded, data["val"], max_new_tokens=256, max_pixels=options.max_pixels)
    options.output.mkdir(parents=True, exist_ok=True)
    annotations = data["val"].write_annotations(options.output / "annotations.json")
    for boxes in ("expected", "argmax"):
        detections = answers.write_detections(options.output / f"detections_{boxes}.json", boxes=boxes)
        metrics = coordexp.evaluate_detections(annotations, detections)
        print(f"{boxes} boxes: AP {metrics.AP:.3f}  AP50 {metrics.AP50:.3f}")


if __name__ == "__main__":
    main()
