"""docs/LOSSES.md: its tables and numbers are read and compared with the code."""

import math
import re
import runpy

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from coordexp.config import load_config
from coordexp.coord_tokens.soft_ce_w1 import gaussian_soft_targets
from coordexp.losses import term
from coordexp.losses.coord_box import diou, giou
from coordexp.losses.terms import loss_terms
from coordexp.train.setup.weighted_terms import build_criterion
from tests.support.terms import BOXES, PAGE, ROOT, SHAPE, WARM, terms


def page_table(section):
    """Return the first table of a section of the page, by the name in its first column."""
    body = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = body[body.index("\n|") + 1 :].split("\n\n")[0].splitlines()
    header, _, *cells = ([cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows)
    return {row[0].strip("`"): dict(zip(header[1:], row[1:], strict=True)) for row in cells}


WRITER = runpy.run_path(str(ROOT / "docs" / "tables.py"))
# Of these the page gives values and formulas; a new term need not be here.
NAMES = sorted(page_table("Values and gradients"))


def test_the_page_has_what_the_terms_say_of_themselves():
    """A row that differs is written again by the command; a term without a row is not on the page yet."""
    written = PAGE.split(WRITER["BEGIN"] + "\n")[1].split("\n" + WRITER["END"])[0].splitlines()
    known = {f"`{name}`": WRITER["term_row"](found) for name, found in loss_terms().items()}
    rows = {line.split("|")[1].strip(): line for line in written[2:]}
    assert rows == {name: known.get(name) for name in rows}, f"run: {WRITER['COMMAND']}"
    assert {name.strip("`") for name in rows} >= set(NAMES)
    assert all(f"- **`{name}`**: " in PAGE for name in NAMES)


def test_the_table_of_results_follows_from_what_is_published():
    written = PAGE.split(WRITER["RESULTS_BEGIN"] + "\n")[1].split("\n" + WRITER["RESULTS_END"])[0]
    assert written == WRITER["results_table"](), f"run: {WRITER['COMMAND']}"


def test_groups_weigh_what_the_page_says(monkeypatch):
    monkeypatch.chdir(ROOT)
    table = page_table("Groups")
    groups = list(next(iter(table.values())))
    assert groups == ["A", "B", "C", "D", "B_gate", "C_D"]
    config = load_config("experiments/base.yaml", [f"ablation.groups=[{', '.join(groups)}]"])
    for group in groups:
        criterion = build_criterion(config.run(group, 0))
        on_page = {name: float(row[group] or 0) for name, row in table.items()}
        assert {weighted.term.name: weighted.weight for weighted in criterion.terms} == on_page


# Gradients


def _slopes(value, boxes_M4, targets_M4):
    """The slopes of a value of box pairs in c, by central differences in float64."""
    step = 1e-7 * torch.eye(4, dtype=torch.float64)
    slopes = [(value(boxes_M4 + row, targets_M4) - value(boxes_M4 - row, targets_M4)) / 2e-7 for row in step]
    return torch.stack(slopes, dim=1)


def _shape_difference(boxes_M4, targets_M4):
    """The v of CIoU."""
    angles = []
    for boxes in (boxes_M4, targets_M4):
        width, height = ((boxes[:, i + 2] - boxes[:, i]).abs() for i in (0, 1))
        angles.append((width / height).atan())
    return (2 / math.pi * (angles[0] - angles[1])) ** 2


def _force(name, boxes, targets):
    """What pulls at each coordinate of the expected boxes."""
    if name == "box_l1":
        return (boxes - targets).sign()
    if name == "smooth_l1":
        return ((boxes - targets) / 0.1).clamp(-1, 1)
    if name == "box_giou":
        return -_slopes(giou, boxes, targets)
    if name == "box_centre_l1":
        off = boxes - targets
        centre, size = (off[:, :2] + off[:, 2:]).sign() / 2, (off[:, 2:] - off[:, :2]).sign()
        return torch.cat([centre - size, centre + size], dim=1)
    force = -_slopes(diou, boxes, targets)
    if name == "box_ciou":
        ordered = torch.cat([torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])], 1)
        overlap = torch.minimum(ordered[:, 2:], targets[:, 2:]) - torch.maximum(ordered[:, :2], targets[:, :2])
        area = [(each[:, 2:] - each[:, :2]).prod(dim=1) for each in (ordered, targets)]
        shared = overlap.clamp(min=0).prod(dim=1)
        v, iou = _shape_difference(boxes, targets), shared / (sum(area) - shared)
        force += (v / (1 - iou + v)).unsqueeze(1) * _slopes(_shape_difference, boxes, targets)
    return force


def _page_formula(name, case, shape):
    """The last column of the page's table, written out: ``[T, V]``."""
    z, y, is_coord, coord = case.logits.detach(), case.targets, case.is_coord, case.coord
    p, coord_rows = z.softmax(dim=1), case.is_coord.nonzero().squeeze(1)
    s, bins = z[is_coord][:, coord].softmax(dim=1), y[is_coord] - coord.start
    t = (z[is_coord][:, coord] / shape.temperature).softmax(dim=1)
    q = gaussian_soft_targets(bins, sigma=shape.sigma, truncate=shape.truncate).double()
    k = torch.arange(1000, dtype=torch.float64)
    c = (s * k / 1000).sum(dim=1, keepdim=True)
    mass = p[:, coord].sum(dim=1, keepdim=True)
    gradient = torch.zeros_like(z)
    inside = torch.zeros(len(coord_rows), 1000, dtype=torch.float64)
    if name in ("text_ce", "coord_ce"):
        rows = is_coord if name == "coord_ce" else ~is_coord
        gradient[rows] = (p - F.one_hot(y, z.shape[1]))[rows]
        return gradient
    if name == "gate":
        cooled = (z[is_coord] / shape.temperature).softmax(dim=1)
        gradient[is_coord] = cooled / shape.temperature
        inside = -(1 - cooled[:, coord].sum(dim=1, keepdim=True)) * t / shape.temperature
    elif name == "text_gate":
        gradient[~is_coord] = (-mass * p / (1 - mass))[~is_coord]
        gradient[:, coord] = torch.where(is_coord.unsqueeze(1), 0, p[:, coord])
        return gradient
    elif name in BOXES:
        force = _force(name, c[: case.boxes.numel()].view(-1, 4), case.boxes)
        spread = s * (k / 1000 - c)
        inside[: force.numel()] = force.view(-1, 1) * spread[: force.numel()]
    elif name == "soft_ce":
        inside = (t - q) / shape.temperature
    elif name == "w1":
        signs = (t - q).cumsum(dim=1).sign() / 999
        signs[:, 999] = 0
        g = signs.flip(1).cumsum(dim=1).flip(1)
        inside = t * (g - (t * g).sum(dim=1, keepdim=True)) / shape.temperature
    elif name in ("emd2", "ordinal_ce"):
        cdf, below = s.cumsum(dim=1), k >= bins.unsqueeze(1)
        each = 2 * (cdf - below.double()) if name == "emd2" else torch.where(below, -1 / cdf, 1 / (1 - cdf))
        each[:, 999] = 0
        g = each.flip(1).cumsum(dim=1).flip(1) / 999
        inside = s * (g - (s * g).sum(dim=1, keepdim=True))
    elif name == "soft_target":
        inside = s - (-(k - bins.unsqueeze(1)).abs()).softmax(dim=1)
    elif name == "coord_slice_ce":
        inside = s - F.one_hot(bins, 1000)
    gradient[coord_rows[:, None], torch.arange(coord.start, coord.stop)] = inside
    return gradient


@pytest.mark.parametrize("shape", [SHAPE, WARM], ids=["default", "warm"])
@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_the_formula_of_the_page_and_reaches_what_it_says(name, shape, make_case):
    case = make_case()
    found, expected = case.gradient(terms(shape)[name]), _page_formula(name, case, shape)
    # IoU's slopes come by differences; the float32 targets sum to 1 up to 2^-24, which multiplies t.
    atol = {"box_giou": 1e-7, "box_diou": 1e-7, "box_ciou": 1e-7, "soft_ce": 1e-7, "soft_target": 1e-7}.get(name, 1e-12)
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    assert expected.abs().max() > 100 * atol
    elsewhere = torch.ones(found.shape[1], dtype=torch.bool)
    elsewhere[case.coord] = False
    blocks = {
        f"{kind} row, {part}": "yes" if found[rows][:, columns].any() else "no"
        for kind, rows in (("coord", case.is_coord), ("text", ~case.is_coord))
        for part, columns in (("`C`", case.coord), ("rest", elsewhere))
    }
    assert blocks.items() <= page_table("Values and gradients")[name].items()


@pytest.mark.parametrize("shape", [SHAPE, WARM], ids=["default", "warm"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "box_ciou"])  # its weight a has no gradient
def test_gradcheck_of_every_term(name, shape, make_case):
    case = make_case(num_boxes=2)

    def value(logits):
        case.logits = logits
        return terms(shape)[name](case.inputs)

    assert torch.autograd.gradcheck(value, (case.logits,), fast_mode=True)


def test_a_cut_object_has_no_gradient_from_boxes(make_case):
    case = make_case(num_boxes=1, num_loose=2)
    for name in BOXES:
        rows = case.gradient(terms()[name]).any(dim=1)
        assert rows.tolist() == [True] * 4 + [False] * (len(rows) - 4)
    assert case.gradient(terms()["soft_ce"]).any(dim=1).tolist() == [True] * 6 + [False] * (len(rows) - 6)


def test_groups_a_and_d_train_on_no_decoded_coordinate(make_case, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_config("experiments/base.yaml", ["ablation.groups=[A, B, C, D, B_gate, C_D]"])

    def refuse(_):
        raise AssertionError("a coordinate was decoded")

    monkeypatch.setattr(term, "expected_values", refuse)
    inputs = make_case().inputs
    counts = torch.ones(4)
    for group in ("A", "D"):
        shares = build_criterion(config.run(group, 0)).shares(inputs, counts)
        assert all(share.isfinite() for share in shares.values())
    for group in ("B", "C", "B_gate", "C_D"):
        with pytest.raises(AssertionError, match="decoded"):
            build_criterion(config.run(group, 0)).shares(inputs, counts)
