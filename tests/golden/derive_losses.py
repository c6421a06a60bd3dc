"""Derive losses.json: values of the loss functions in exact or 50-digit arithmetic, by other ways than the code's.

python tests/golden/derive_losses.py    # writes losses.json beside itself

- Areas by coordinate compression: the plane is cut at every corner and whole cells are counted.
- Wasserstein-1 by moving mass: the leftmost mass left over goes to the leftmost place with room.
- Exponentials and logarithms in decimal, 50 digits.
"""

import json
from decimal import Decimal, getcontext
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

getcontext().prec = 50
PATH = Path(__file__).with_name("losses.json")

# Corners in thousandths of the image.
BOXES = [
    ((100, 200, 400, 600), (100, 200, 400, 600)),
    ((100, 200, 400, 600), (250, 200, 550, 600)),
    ((100, 200, 400, 600), (400, 200, 700, 600)),
    ((100, 200, 400, 600), (400, 600, 700, 900)),
    ((0, 0, 999, 999), (123, 456, 789, 987)),
    ((300, 0, 400, 999), (0, 450, 999, 500)),
    ((10, 10, 11, 11), (11, 10, 12, 11)),
    ((10, 10, 20, 20), (980, 970, 999, 999)),
    ((400, 600, 100, 200), (250, 200, 550, 600)),
    ((500, 500, 500, 500), (400, 400, 600, 600)),
    ((500, 300, 500, 700), (100, 400, 300, 600)),
]
WEIGHTS = [
    ((1, 0, 0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0, 0, 1)),
    ((1, 2, 3, 4, 4, 3, 2, 1), (4, 3, 2, 1, 1, 2, 3, 4)),
    ((0, 5, 0, 5, 0, 5, 0, 5), (5, 0, 5, 0, 5, 0, 5, 0)),
    ((1, 1, 1, 1, 1, 1, 1, 1), (0, 0, 0, 8, 0, 0, 0, 0)),
    ((3, 1, 4, 1, 5, 9, 2, 6), (2, 7, 1, 8, 2, 8, 1, 2)),
]
# Logits -(k - centre)^2 / spread over 1000 bins; sigma, radius, bin and temperature of the target.
BUMPS = [("412.3", "1800"), ("2.5", "900"), ("998.75", "12.5"), ("-40", "5000"), ("500", "1e9")]
TARGETS = [("2", 16, 412, "1"), ("2", 16, 0, "1"), ("0.5", 3, 999, "0.25"), ("20", 16, 7, "2"), ("3", 40, 500, "1")]
# Logits of a vocabulary of 6 with coord ids 2, 3 and 4.
VOCABULARIES = [
    ("1", "0", "2", "-1", "0.5", "3"),
    ("0", "0", "0", "0", "0", "0"),
    ("-8", "-9", "12", "11", "9.5", "-7"),
]


def cells(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int, int]:
    """Return overlap, union and hull in square thousandths."""
    spans = [[(min(box[axis], box[axis + 2]), max(box[axis], box[axis + 2])) for box in (a, b)] for axis in (0, 1)]
    overlap = union = hull = 0
    for x1, x2 in pairwise(sorted({edge for span in spans[0] for edge in span})):
        for y1, y2 in pairwise(sorted({edge for span in spans[1] for edge in span})):
            inside = [spans[0][i][0] <= x1 < spans[0][i][1] and spans[1][i][0] <= y1 < spans[1][i][1] for i in (0, 1)]
            area = (x2 - x1) * (y2 - y1)
            overlap, union, hull = overlap + area * all(inside), union + area * any(inside), hull + area
    return overlap, union, hull


def giou(a: tuple[int, ...], b: tuple[int, ...]) -> Fraction:
    overlap, union, hull = cells(a, b)
    return Fraction(overlap, union) - Fraction(hull - union, hull)


def transport(p: tuple[int, ...], q: tuple[int, ...]) -> Fraction:
    """Move the mass of ``p`` to ``q`` from left to right; the cost in widths of the vocabulary."""
    have, want = ([Fraction(value, sum(weights)) for value in weights] for weights in (p, q))
    cost, i, j = Fraction(0), 0, 0
    while i < len(p) and j < len(q):
        moved = min(have[i], want[j])
        cost += moved * abs(i - j)
        have[i] -= moved
        want[j] -= moved
        i, j = i + (have[i] == 0), j + (want[j] == 0)
    return cost / (len(p) - 1)


def bump(centre: str, spread: str) -> list[Decimal]:
    return [-((k - Decimal(centre)) ** 2) / Decimal(spread) for k in range(1000)]


def softmax(logits: list[Decimal]) -> list[Decimal]:
    weights = [logit.exp() for logit in logits]
    return [weight / sum(weights) for weight in weights]


def gaussian(sigma: str, radius: int, true_bin: int) -> list[Decimal]:
    weights = [
        (-(Decimal(k - true_bin) ** 2) / (2 * Decimal(sigma) ** 2)).exp() if abs(k - true_bin) <= radius else Decimal(0)
        for k in range(1000)
    ]
    return [weight / sum(weights) for weight in weights]


def soft_ce(logits: list[Decimal], target: list[Decimal], temperature: str) -> Decimal:
    divided = [logit / Decimal(temperature) for logit in logits]
    log_z = sum(logit.exp() for logit in divided).ln()
    return sum(q * (log_z - logit) for q, logit in zip(target, divided, strict=True) if q)


def derive() -> dict[str, list[dict[str, object]]]:
    """Return every case with its value, as numbers that JSON can hold."""
    distributions = []
    for (centre, spread), (sigma, radius, true_bin, temperature) in zip(BUMPS, TARGETS, strict=True):
        logits, q = bump(centre, spread), gaussian(sigma, radius, true_bin)
        p = softmax([logit / Decimal(temperature) for logit in logits])
        gaps, below = [], Decimal(0)
        for ours, theirs in zip(p[:-1], q[:-1], strict=True):
            below += ours - theirs
            gaps.append(abs(below))
        distributions.append(
            {
                "centre": float(centre),
                "spread": float(spread),
                "sigma": float(sigma),
                "radius": radius,
                "bin": true_bin,
                "temperature": float(temperature),
                "expected": float(sum(k * s for k, s in enumerate(softmax(logits))) / 1000),
                "target_at_bin": float(q[true_bin]),
                "target_beside": float(q[true_bin - 1] if true_bin else q[1]),
                "soft_ce": float(soft_ce(logits, q, temperature)),
                "w1": float(sum(gaps) / 999),
            }
        )
    gates = []
    for values in VOCABULARIES:
        mass = sum(softmax([Decimal(value) for value in values])[2:5])
        gates.append({"logits": [float(value) for value in values], "gate": float(-mass.ln())})
    return {
        "boxes": [
            {
                "box": a,
                "target": b,
                "giou": float(giou(a, b)),
                "l1": sum(abs(p - q) for p, q in zip(a, b, strict=True)) / 1000,
            }
            for a, b in BOXES
        ],
        "transport": [{"p": p, "q": q, "w1": float(transport(p, q))} for p, q in WEIGHTS],
        "distributions": distributions,
        "gates": gates,
    }


if __name__ == "__main__":
    sections = [
        f'"{name}": [\n' + ",\n".join(f"  {json.dumps(case)}" for case in cases) + "\n]"
        for name, cases in derive().items()
    ]
    PATH.write_text("{\n" + ",\n".join(sections) + "\n}\n", encoding="utf-8")
