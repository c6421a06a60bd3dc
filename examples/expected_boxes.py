"""Boxes by expectation from a server that returns log probabilities, such as vLLM: plain Python, no library.

Ask the server for as many likely tokens as it allows (``logprobs=True, top_logprobs=20`` of OpenAI's interface; vLLM
returns up to 128 where it is started with ``--max-logprobs 128``) and give ``choice.logprobs.content`` to
:func:`expected_boxes`. What this loses against the whole distribution is measured: ``AP_top5``, ``AP_top20`` and
``AP_top128`` of a run stand beside its AP.
"""

import math
import re
from collections.abc import Iterable, Mapping

_COORD_TOKEN = re.compile(r"<\|coord_(\d+)\|>")


def expected_coordinate(log_probs: Mapping[str, float]) -> float:
    """Return the mean coordinate in [0, 1) of the coord tokens among some tokens with their log probabilities."""
    weights: dict[int, float] = {}
    for token, log_prob in log_probs.items():
        matched = _COORD_TOKEN.fullmatch(token)
        if matched:
            weights[int(matched[1])] = math.exp(log_prob)
    return sum(k * weight for k, weight in weights.items()) / sum(weights.values()) / 1000


def expected_boxes(content: Iterable[Mapping]) -> list[list[float]]:
    """Return ``[x1, y1, x2, y2]`` of each box in an answer, as fractions of the image's sides.

    ``content``: one entry a token, with its ``token``, ``logprob`` and ``top_logprobs``, which are entries again.
    """
    coordinates: list[float] = []
    for entry in content:
        if _COORD_TOKEN.fullmatch(entry["token"]):
            likeliest = {other["token"]: other["logprob"] for other in entry["top_logprobs"]}
            coordinates.append(expected_coordinate({**likeliest, entry["token"]: entry["logprob"]}))
    return [coordinates[start : start + 4] for start in range(0, len(coordinates) - 3, 4)]
