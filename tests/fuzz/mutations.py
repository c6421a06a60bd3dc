"""Ways in which a file is damaged where people work: cut, in another encoding, another tool's, edited by hand."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

_TABLE_BYTES = 4_000
# What a hand or another program puts where something else belongs.
ODD_VALUES: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 1000, 2**33, 0.5, 1e9, float("nan"), float("inf"), "", " ", "0", "-1", "nan", "null",
    "true", "a", "../x", "é", "a\nb", "{{ x }}", [], {}, [[]], [None], [1, 2, 3, 4], [1, 2, 3, 4, 5], ["a"], {"a": 1},
    {"id": 1},
)  # fmt: skip


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Cut a file, lose or double a part of it, or write it in another encoding."""
    start = rng.randrange(len(content) + 1)
    end = min(len(content), start + rng.choice((1, 8, 64, 1_000)))
    text = content.decode("utf-8", "replace")
    damage: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: content[:start],
        lambda: content[:start] + content[end:],
        lambda: content[:end] + content[start:],
        lambda: content[:start] + rng.choice((b",", b'"', b"\xe9", b"}", b"]", b"\x00", b"\n\n")) + content[start:],
        lambda: b"\xef\xbb\xbf" + content,
        lambda: text.encode("utf-16"),
        lambda: text.replace("\n", "\r\n").encode(),
        lambda: b"<!DOCTYPE html><html><body>Not found</body></html>\n",
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n",
    ]
    return rng.choice(damage)()


def mutate_value(value: object, rng: random.Random) -> object:
    """Return a value of JSON with something exchanged, dropped, doubled or renamed in one place."""
    if rng.random() < 0.2 or not value or not isinstance(value, dict | list):
        return rng.choice(ODD_VALUES)
    if isinstance(value, list):
        place = rng.randrange(len(value))
        match rng.randrange(6):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return [*value[:place], value[place], *value[place:]]
            case _:
                return [*value[:place], mutate_value(value[place], rng), *value[place + 1 :]]
    name = rng.choice(list(value))
    match rng.randrange(8):
        case 0:
            return {key: item for key, item in value.items() if key != name}
        case 1:
            return {(f"{key}x" if key == name else key): item for key, item in value.items()}
        case 2:
            return {**value, rng.choice(("x", "id")): rng.choice(ODD_VALUES)}
        case _:
            return {**value, name: mutate_value(value[name], rng)}


def mutate_json_file(path: Path, rng: random.Random, *, each_line: bool = False) -> None:
    """Damage a file of JSON, mostly so that it stays one; ``each_line`` is for a value a line."""
    content = path.read_bytes()
    lines = content.splitlines() if each_line else [content]
    place = rng.randrange(len(lines) or 1)
    try:
        value = json.loads(lines[place])
    except (ValueError, IndexError):  # it is damaged already
        value = None
    if rng.random() < 0.25 or value is None:
        path.write_bytes(mutate_bytes(content, rng))
    else:
        lines[place] = json.dumps(mutate_value(value, rng)).encode()
        path.write_bytes(b"\n".join(lines) + (rng.choice((b"\n", b"")) if each_line else b""))


def mutate_weights(path: Path, rng: random.Random) -> None:
    """Damage the table at the beginning of a safetensors file; behind it are numbers, of which any is as good."""
    content = path.read_bytes()
    path.write_bytes(mutate_bytes(content[:_TABLE_BYTES], rng) + content[_TABLE_BYTES:])


def misplace(path: Path, rng: random.Random) -> None:
    """Put nothing, an empty file, a folder or a dead link in the place of a file."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    put: list[Callable[[], object]] = [
        lambda: None,
        path.mkdir,
        lambda: os.symlink(path.with_name("nowhere"), path),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(b"\x00" * 5_000),  # as a file system leaves it after a power cut
    ]
    rng.choice(put)()
