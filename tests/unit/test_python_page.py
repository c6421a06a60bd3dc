"""The interface for scripts: its page, its names, its script, and that its losses are those of a run."""

import ast
import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import coordexp
from coordexp.errors import TokenizerError
from tests.support.commands import ROOT, blocks, lines_not_printed

PAGE = ROOT / "docs" / "python.md"
SCRIPT = ROOT / "examples" / "one_group.py"
COCO_TINY = ROOT / "examples" / "coco_tiny"
MAX_PIXELS = 96 * 96


def page_table() -> list[str]:
    """Return the names in the table of the page."""
    rows = re.findall(r"^\| [^|]+ \| (`.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(names) > 20
    return names


@pytest.fixture(scope="module")
def loaded():
    loaded = coordexp.load("embedded", dtype="float32")  # as stored, its own head rounds logits to bfloat16
    vocab = coordexp.expand_vocab(loaded.model, loaded.processor.tokenizer, init="numeric")
    loaded.model.requires_grad_(False)
    coordexp.install_coord_offset_adapter(loaded.model, coord_ids=vocab.coord_ids)
    with torch.no_grad():
        for table in loaded.model.coord_offset_adapter.parameters():
            table.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    return replace(loaded, vocab=vocab)


@pytest.fixture(scope="module")
def data():
    return coordexp.read_data(COCO_TINY)


@pytest.fixture(scope="module")
def batch(loaded, data):
    return coordexp.collate(data["train"][:3], loaded, max_pixels=MAX_PIXELS)


def criterion_of(**weights: float) -> coordexp.Criterion:
    terms = coordexp.loss_terms()
    return coordexp.Criterion([coordexp.WeightedTerm(terms[name](), weight) for name, weight in weights.items()])


def logits_of(loaded, batch) -> torch.Tensor:
    from coordexp.train.forward import model_inputs

    spec = coordexp.own_loop._image_spec(loaded, max_pixels=MAX_PIXELS)
    return loaded.model(**model_inputs(batch, spec, dtype=torch.float32), use_cache=False).logits


def test_the_page_names_the_interface_and_dir_lists_it():
    assert sorted(page_table()) == sorted(coordexp.__all__)
    assert set(coordexp.__all__) <= set(dir(coordexp))


@pytest.mark.parametrize("name", coordexp.__all__)
def test_each_name_can_be_imported_and_has_a_docstring_of_its_own(name: str):
    value = getattr(coordexp, name)
    doc = value.__doc__ or ""
    assert len(doc.split()) > 3
    assert not doc.startswith(f"{name}(")  # what a dataclass without a docstring has


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="losses_of_batch"):
        coordexp.losses_of_batch  # noqa: B018


def test_the_names_are_known_to_type_checkers_and_lead_where_they_are_defined():
    tree = ast.parse((ROOT / "coordexp" / "__init__.py").read_text(encoding="utf-8"))
    imported = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("coordexp.")
        for alias in node.names
    }
    assert sorted(imported) == sorted(coordexp.__all__)
    for name, module in imported.items():
        assert getattr(importlib.import_module(module), name) is getattr(coordexp, name)


def test_the_blocks_of_the_page_run(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sources = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(sources) > 8
    names: dict[str, object] = {}
    for source in sources[:-1]:  # the last one changes the logging of the process
        exec(compile(source, str(PAGE), "exec"), names)
    assert (names["output"] / "merged" / "config.json").is_file()


def test_the_script_is_short_and_uses_the_interface_alone():
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    used = set(re.findall(r"coordexp\.(\w+)", "\n".join(lines)))
    assert len(used) > 8
    assert used <= set(coordexp.__all__)
    assert not [line for line in lines if re.match(r"\s*from coordexp", line)]


def test_the_script_trains_and_measures(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--steps", "2", "--output", tmp_path],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = [float(number) for number in re.findall(r"loss (\d+\.\d+)", done.stdout)]
    assert len(losses) == 2
    [block] = [block for block in blocks(PAGE) if "one_group.py" in block.commands[0].words[1]]
    assert len(block.commands[0].output) == 4
    assert not lines_not_printed(block.commands[0].output, done.stdout)
    assert re.search(r"argmax boxes: AP \d", done.stdout)
    assert (tmp_path / "detections_argmax.json").is_file()


def test_text_and_coord_ce_are_plain_cross_entropy_of_the_logits(loaded, batch):
    loss, means = coordexp.loss_of_batch(loaded, batch, criterion_of(text_ce=1.0, coord_ce=1.0))
    logits = logits_of(loaded, batch)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(means["text_ce"] + means["coord_ce"], expected)


def test_losses_on_anybodys_logits_are_those_of_the_batch_for_every_term(loaded, batch):
    names = [name for name, term in coordexp.loss_terms().items() if term.reads in ("bins", "any")]
    assert len(names) > 10
    criterion = criterion_of(**dict.fromkeys(names, 1.0))
    parameters = list(loaded.model.coord_offset_adapter.parameters())
    loss, means = coordexp.loss_of_batch(loaded, batch, criterion)
    gradients = torch.autograd.grad(loss, parameters)
    by_logits, means_by_logits = coordexp.loss_of_logits(
        logits_of(loaded, batch), batch.labels, criterion, loaded.vocab,
        boxes_norm_xyxy=batch.boxes_norm_xyxy,
    )  # fmt: skip
    assert set(means) == set(names)
    torch.testing.assert_close(by_logits, loss, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(means_by_logits, means, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.autograd.grad(by_logits, parameters), gradients, rtol=1e-3, atol=1e-5)


def test_a_criterion_on_other_logits_sees_other_losses(loaded, batch):
    criterion = criterion_of(text_ce=1.0, box_l1=1.0)
    logits = logits_of(loaded, batch)
    vocab = loaded.vocab
    loss, _ = coordexp.loss_of_logits(logits, batch.labels, criterion, vocab)
    shifted, _ = coordexp.loss_of_logits(logits.roll(1, dims=1), batch.labels, criterion, vocab)
    assert not torch.allclose(loss, shifted)


def test_boxes_of_the_labels_are_those_of_the_file_rounded_to_bins(loaded, batch):
    criterion = criterion_of(box_l1=1.0)
    logits, vocab = logits_of(loaded, batch), loaded.vocab
    rounded, _ = coordexp.loss_of_logits(logits, batch.labels, criterion, vocab)
    exact, _ = coordexp.loss_of_logits(logits, batch.labels, criterion, vocab, boxes_norm_xyxy=batch.boxes_norm_xyxy)
    assert abs(rounded - exact) < 4 * 0.001  # four coordinates, each off by half a bin at most
    with pytest.raises(ValueError, match=r"\(1, 4\)"):
        coordexp.loss_of_logits(logits, batch.labels, criterion, vocab, boxes_norm_xyxy=torch.zeros(1, 4))


def test_the_losses_of_a_divided_step_add_up(loaded, data):
    criterion = criterion_of(text_ce=1.0, coord_ce=1.0, box_giou=1.0)
    samples = data["train"][:4]
    whole, _ = coordexp.loss_of_batch(loaded, coordexp.collate(samples, loaded, max_pixels=MAX_PIXELS), criterion)
    parts = [coordexp.collate(part, loaded, max_pixels=MAX_PIXELS) for part in (samples[:1], samples[1:])]
    units = coordexp.count_units(parts)
    shares = [coordexp.loss_of_batch(loaded, part, criterion, units=units)[0] for part in parts]
    torch.testing.assert_close(sum(shares), whole)


def test_a_picture_without_objects_has_a_loss(loaded, data):
    empty = replace(data["train"][0], objects=data["train"][0].objects.take(torch.zeros(0, dtype=torch.int64).numpy()))
    batch = coordexp.collate([empty], loaded, max_pixels=MAX_PIXELS)
    criterion = criterion_of(text_ce=1.0, box_giou=1.0)
    loss, means = coordexp.loss_of_batch(loaded, batch, criterion)
    by_logits, _ = coordexp.loss_of_logits(logits_of(loaded, batch), batch.labels, criterion, loaded.vocab)
    assert means["box_giou"] == 0
    torch.testing.assert_close(by_logits, loss)


def test_a_model_that_was_not_expanded_is_refused_with_the_name_of_what_is_missing(data):
    with pytest.raises(TokenizerError, match="coord_0"):
        coordexp.collate(data["train"][:1], coordexp.load("embedded"))


def test_answers_come_in_the_order_of_the_samples_and_are_measured(loaded, data, tmp_path):
    val = data["val"]
    answers = coordexp.generate(loaded, val, max_new_tokens=32, batch_size=4, max_pixels=MAX_PIXELS)
    assert [prediction.picture for prediction in answers.predictions] == [sample.image for sample in val]
    assert any(prediction.objects for prediction in answers.predictions)
    annotations = val.write_annotations(tmp_path / "annotations.json")
    metrics = coordexp.evaluate_detections(annotations, answers.write_detections(tmp_path / "detections.json"))
    assert metrics.AP is not None


def test_written_annotations_are_those_that_were_read(data, tmp_path):
    truth = json.loads((COCO_TINY / "annotations" / "instances_val.json").read_text(encoding="utf-8"))
    written = json.loads(data["val"].write_annotations(tmp_path / "a.json").read_text(encoding="utf-8"))
    assert len(written["annotations"]) == len(truth["annotations"])
    assert {image["id"] for image in written["images"]} == {image["id"] for image in truth["images"]}
