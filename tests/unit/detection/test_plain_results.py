"""The compiled reader of results: what it takes is what every reader of JSON reads there, and all else it leaves."""

import json
import random
from decimal import Decimal, getcontext
from pathlib import Path

import numpy as np
import pytest

from coordexp.detection import detections
from coordexp.detection.plain_results import read_plain

PLAIN = '[{"image_id": 7, "category_id": 58, "bbox": [388.67, 0.5, 1e-05, 198], "score": 0.8260632980735938}]'


def entry(score: str) -> bytes:
    return f'[{{"image_id":1,"category_id":2,"bbox":[{score},-{score},0,1],"score":{score}}}]'.encode()


def same_as_json(content: bytes) -> bool:
    """Whether the reader takes a text; where it does, it has found what Python's own does, to the last bit."""
    found = read_plain(content)
    if found is None:
        return False
    (images, categories), boxes, scores = found
    rows = json.loads(content)
    assert images.tolist() == [row["image_id"] for row in rows]
    assert categories.tolist() == [row["category_id"] for row in rows]
    assert boxes.tobytes() == np.array([row["bbox"] for row in rows], np.float64).tobytes()
    assert scores.tobytes() == np.array([row["score"] for row in rows], np.float64).tobytes()
    return True


def test_a_plain_file_in_any_order_and_with_any_space() -> None:
    other = '\n[ {"score" :1,\t"bbox":[ 1.5 ,2,3e-1,4.25],"category_id":0 ,"image_id":12 }\r\n,' + PLAIN[1:-1] + " ] \n"
    assert same_as_json(PLAIN.encode())
    assert same_as_json(other.encode())
    assert same_as_json(json.dumps(json.loads(PLAIN) * 1000).encode())


def test_numbers_are_the_nearest_floats() -> None:
    rng, taken = random.Random(0), 0
    for _ in range(20_000):
        texts = (
            repr(rng.random() * 10 ** rng.randrange(-9, 8)),
            str(rng.randrange(10 ** rng.randrange(1, 20))),
            f"0.{'0' * rng.randrange(12)}{rng.randrange(10 ** rng.randrange(1, 18))}",
            f"{rng.random():.{rng.randrange(1, 17)}e}",
        )
        taken += same_as_json(entry(rng.choice(texts)))
    assert taken > 10_000


def test_numbers_beside_the_middle_of_two_floats() -> None:
    """The middle itself goes to the even one, and a last digit more or less decides everywhere else."""
    getcontext().prec = 60
    rng, taken = random.Random(1), 0
    for _ in range(5_000):
        middle = Decimal(rng.randrange(2**53, 2**54) | 1) / 2 ** rng.randrange(4)
        texts = [str(middle), *(f"{Decimal(rng.random()) + Decimal(2) ** -54:.{n}f}" for n in (16, 17))]
        taken += sum(same_as_json(entry(text)) for text in texts)
    assert taken > 10_000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"score": 0', '"score": 00'),
        ('"score": 0.', '"score": .'),
        ("0.8260632980735938", "1."),
        ("0.8260632980735938", "-"),
        ("0.8260632980735938", "null"),
        ("0.8260632980735938", "NaN"),
        ("0.8260632980735938", "1e5"),
        ("0.8260632980735938", "1e-"),
        ("0.8260632980735938", "1e-400"),
        ("0.8260632980735938", "0.8260632980735938123"),
        ("0.8260632980735938", "[1]"),
        ('"image_id": 7', '"image_id": 7.0'),
        ('"image_id": 7', '"image_id": 07'),
        ('"image_id": 7', '"image_id": -7'),
        ('"image_id": 7', '"image_id": 9223372036854775808'),
        ('"image_id": 7', '"category_id": 7'),
        ('"image_id": 7, ', ""),
        ('"image_id": 7', '"image_id": 7, "id": 1'),
        ('"category_id": 58', '"category_name": "cat"'),
        ('"category_id"', '"categ\\u006fry_id"'),
        (", 198]", "]"),
        (", 198]", ", 198, 1]"),
        ("}]", "},]"),
        ("}]", "}{]"),
        ("}]", "}] x"),
        ("}]", "}]]"),
        ("}]", "}"),
        (', "score": 0.8260632980735938}]', "]"),
        ("[{", "{"),
        ("[{", "[[{"),
        (PLAIN, "[]"),
        (PLAIN, ""),
    ],
)
def test_all_else_is_left(old: str, new: str) -> None:
    assert PLAIN.count(old) == 1
    assert read_plain(PLAIN.replace(old, new).encode()) is None


def test_a_changed_byte_is_read_alike_or_left() -> None:
    rng, taken = random.Random(2), 0
    for _ in range(20_000):
        content = bytearray(PLAIN.encode())
        for _ in range(rng.randrange(1, 3)):
            content[rng.randrange(len(content))] = rng.choice(b'0123456789.-+eE,:[]{}" \n\x00\xff')
        taken += same_as_json(bytes(content[: rng.choice((None, None, rng.randrange(len(content))))]))
    assert 1_000 < taken < 10_000


def test_both_readers_of_files_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    rows = [
        {"image_id": i, "category_id": i % 9, "bbox": rng.uniform(0, 500, 4).tolist(), "score": float(rng.uniform())}
        for i in range(200)
    ]
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for path in (first, second):
        path.write_text(json.dumps(rows))
    slow = detections.read_results(first)
    monkeypatch.setattr(detections, "_LARGE_BYTES", 0)
    monkeypatch.setattr(detections, "read_entries", None)
    fast = detections.read_results(second)
    assert (fast.names, fast.is_plain) == (slow.names, slow.is_plain)
    for name in ("image_ids", "categories", "boxes", "scores"):
        old, new = getattr(slow, name), getattr(fast, name)
        assert (old.dtype, old.tobytes()) == (new.dtype, new.tobytes())


def test_what_is_not_plain_is_refused_in_the_usual_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detections, "_LARGE_BYTES", 0)
    path = tmp_path / "bad.json"
    path.write_text(PLAIN.replace("198]", "NaN]"))
    with pytest.raises(detections.DataError, match="finite|not valid JSON|Infinity|NaN"):
        detections.read_results(path)
