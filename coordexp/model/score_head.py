"""The learned score of a box: a small head on the hidden state at which a box has just been written, and a few scalars.

It stands for a score token that is read and never emitted: eleven rows beside the vocabulary's, one for each IoU of
0, .1, ... 1, whose softmax has the score as its mean. The model itself, its sequence and its logits stay as they are.
What the logits said while the box was written is no linear function of the hidden state, so the head is given it, too.

Shapes: N boxes, D hidden, S scalars, Q levels.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.errors import CheckpointError
from coordexp.files import parse_model

SCORE_HEAD = "score_head.safetensors"
"""Its file, beside the weights it was trained for."""

SCALARS = (
    "log_width_x1",
    "log_width_y1",
    "log_width_x2",
    "log_width_y2",
    "log_box_width",
    "log_box_height",
    "log_coord_desc",
)
"""What :func:`box_scalars` returns, in its order."""

_NUM_LEVELS = 11
_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_MAX_ITERATIONS = 200
_LEAST_BINS = 12**-0.5  # a bin has a width of its own; nothing is more certain
_LEAST_SCORE = 1e-6


def box_scalars(widths: Sequence[float], bins: Sequence[int], coord_desc: float) -> tuple[float, ...]:
    """Return what a learned score is told of a box besides its hidden state, as :data:`SCALARS` names it.

    Args:
        widths: standard deviations of its four coordinates' distributions, in bins; 0 where there are none.
        bins: x1, y1, x2, y2 as written; corners may be swapped.
        coord_desc: its score from logits.
    """
    x1, y1, x2, y2 = bins
    lengths = (*widths, abs(x2 - x1), abs(y2 - y1))
    return (*(math.log(max(length, _LEAST_BINS)) for length in lengths), math.log(max(coord_desc, _LEAST_SCORE)))


@dataclass(frozen=True, eq=False)
class ScoreHead:
    """A linear layer over hidden states and scalars, and what it was trained on.

    Attributes:
        weight_QF: ``[Q, D + S]`` float32; their standardisation is part of weight and bias.
        bias_Q: float32.
        about: ``boxes`` (own or perturbed), how many of how many ``images``, the ``scalars``, the ``penalty`` chosen,
            and what was reached on boxes it had not seen: ``error``, the mean distance from the IoU, and
            ``constant_error``, that of their mean alone.
    """

    weight_QF: Tensor
    bias_Q: Tensor
    about: dict[str, str]

    def read(self, hidden_ND: Tensor) -> Tensor:
        """Return ``[N, Q]``, the part of hidden states in the logits of the levels: all that is kept of a token."""
        weight_QD = self.weight_QF[:, : hidden_ND.shape[1]].to(hidden_ND.device)
        with torch.autocast(device_type=hidden_ND.device.type, enabled=False):
            return F.linear(hidden_ND.float(), weight_QD, self.bias_Q.to(hidden_ND.device))

    def scores(self, read_NQ: Tensor, scalars_NS: Tensor) -> Tensor:
        """Return the scores ``[N]`` in [0, 1] of boxes, from what :meth:`read` returned where they end."""
        return _mean_level(read_NQ + F.linear(scalars_NS.float(), self.weight_QF[:, -len(SCALARS) :]))

    def save(self, folder: Path) -> None:
        """Write it into the folder of a checkpoint."""
        tensors = {"weight": self.weight_QF.contiguous(), "bias": self.bias_Q.contiguous()}
        # One entry: of several, the file would have another order each time.
        save_file(tensors, folder / SCORE_HEAD, metadata={"about": json.dumps(self.about)})

    @classmethod
    def load(cls, folder: Path) -> "ScoreHead":
        """Read the head of the checkpoint in ``folder``.

        Raises:
            CheckpointError: if it is not there, or is none.
        """
        path = folder / SCORE_HEAD
        if not path.is_file():
            raise CheckpointError(
                f"{path}: file not found; a learned score is trained by a run with evaluation.score: learned, which "
                "leaves it in its merged checkpoint"
            )
        try:
            with safe_open(path, framework="pt") as stored:
                about = parse_model(dict[str, str], stored.metadata()["about"])
                return cls(stored.get_tensor("weight"), stored.get_tensor("bias"), about)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path}: no learned score can be read from it ({error})") from None

    def for_size(self, hidden_size: int) -> "ScoreHead":
        """Return it, for a model of this size.

        Raises:
            CheckpointError: if it is of another model.
        """
        expected = (_NUM_LEVELS, hidden_size + len(SCALARS))
        if tuple(self.weight_QF.shape) != expected or self.bias_Q.shape != expected[:1]:
            raise CheckpointError(
                f"{SCORE_HEAD}: expected a weight of shape {expected} for this checkpoint, got "
                f"{tuple(self.weight_QF.shape)}"
            )
        return self


def fit_score_head(hidden_ND: Tensor, scalars_NS: Tensor, ious_N: Tensor, images_N: Tensor, *, boxes: str) -> ScoreHead:
    """Train a head to tell the IoU of boxes, by softmax regression with a penalty on the weights.

    An IoU between two levels is a target of both, whose mean it is. The penalty is the one under which heads trained
    on either half of the images fit the other half best. The problem is convex, and no random number is drawn: the
    same boxes give the same head. Without boxes on two images, early in a training, every box gets the same score.

    Args:
        hidden_ND: hidden states at the ends of the boxes, any float dtype.
        scalars_NS: float64, :func:`box_scalars` of each.
        ious_N: best IoU of each with ground truth of its category, in [0, 1].
        images_N: int64, the image of each.
        boxes: which boxes these are; kept with the head.
    """
    images, place_N = images_N.unique(return_inverse=True)
    about = {"boxes": boxes, "num_boxes": str(len(ious_N)), "images": str(len(images)), "scalars": ", ".join(SCALARS)}
    if len(images) < 2:
        num_inputs = hidden_ND.shape[1] + scalars_NS.shape[1]
        return ScoreHead(torch.zeros(_NUM_LEVELS, num_inputs), torch.zeros(_NUM_LEVELS), about)
    halves = place_N % 2 == 0
    inputs_NF, ious_N = torch.cat([hidden_ND.double(), scalars_NS], dim=1), ious_N.double()
    mean_F = inputs_NF.mean(dim=0)
    # A hidden state counts as much as one scalar: of some hundred boxes, its many entries would outvote the few.
    scale_F = torch.cat([_scale(hidden_ND.double()) * hidden_ND.shape[1] ** 0.5, _scale(scalars_NS)])
    features_NF = (inputs_NF - mean_F) / scale_F

    def unseen(penalty: float) -> Tensor:
        logits_NQ = torch.empty(len(ious_N), _NUM_LEVELS, dtype=torch.float64)
        for part in (halves, ~halves):
            weight_QF, bias_Q = _regress(features_NF[~part], _targets(ious_N[~part]), penalty=penalty)
            logits_NQ[part] = F.linear(features_NF[part], weight_QF, bias_Q)
        return logits_NQ

    found = {penalty: unseen(penalty) for penalty in _PENALTIES}
    penalty = min(found, key=lambda one: float(F.cross_entropy(found[one], _targets(ious_N))))
    weight_QF, bias_Q = _regress(features_NF, _targets(ious_N), penalty=penalty)
    weight_QF = weight_QF / scale_F
    about |= {
        "penalty": f"{penalty:g}",
        "error": f"{float((_mean_level(found[penalty]) - ious_N).abs().mean()):.4f}",
        "constant_error": f"{float((ious_N - ious_N.mean()).abs().mean()):.4f}",
    }
    return ScoreHead(weight_QF.float(), (bias_Q - weight_QF @ mean_F).float(), about)


def _scale(values_NF: Tensor) -> Tensor:
    """Return ``[F]`` standard deviations; what hardly varies must not be blown up."""
    return values_NF.std(dim=0, correction=0).clamp(min=1e-6 * float(values_NF.abs().max().clamp(min=1e-30)))


def _regress(features_NF: Tensor, targets_NQ: Tensor, *, penalty: float) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of least mean cross-entropy plus ``penalty / 2`` times the squared weights."""
    weight_QF = torch.zeros(_NUM_LEVELS, features_NF.shape[1], dtype=torch.float64, requires_grad=True)
    bias_Q = torch.zeros(_NUM_LEVELS, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight_QF, bias_Q], max_iter=_MAX_ITERATIONS, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(features_NF, weight_QF, bias_Q), targets_NQ)
        value = value + penalty / 2 * (weight_QF.square().sum() + 1e-3 * bias_Q.square().sum())
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return weight_QF.detach(), bias_Q.detach()


def _targets(ious_N: Tensor) -> Tensor:
    """Return ``[N, Q]`` distributions over the levels with the IoUs as their means."""
    place_N = ious_N.clamp(0, 1) * (_NUM_LEVELS - 1)
    levels_Q = torch.arange(_NUM_LEVELS, dtype=place_N.dtype)
    return (1 - (place_N.unsqueeze(1) - levels_Q).abs()).clamp(min=0)


def _mean_level(logits_NQ: Tensor) -> Tensor:
    levels_Q = torch.linspace(0, 1, _NUM_LEVELS, dtype=logits_NQ.dtype, device=logits_NQ.device)
    return (logits_NQ.softmax(dim=1) * levels_Q).sum(dim=1)
