"""Ways to damage a text, a value of JSON, or a file, all drawn from one generator of random numbers."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

_TABLE_BYTES = 4_000
DEPTHS = (40, 300, 3_000, 100_000)
_DEEP = "\x00deep\x00"
# Values that other programs, hands and accidents put where something else belongs.
ODD_VALUES: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    999,
    1000,
    2**31,
    2**33,
    2**63,
    -(2**63) - 1,
    10**30,
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    " ",
    "0",
    "-1",
    "1e999",
    "nan",
    "null",
    "true",
    "a",
    "../../x",
    "/etc/passwd",
    "x" * 3_000,
    "\ud800",
    "\x00",
    "\x1b[31m",
    "\u202e",
    "é",
    "a\nb",
    "{{ 1/0 }}",
    "$(id)",
    "; id",
    [],
    {},
    [[]],
    [None],
    {"": 0},
    [1, 2, 3, 4],
    [1, 2, 3, 4, 5],
    ["a"],
    {"a": 1},
    {"id": 1},
    _DEEP,
)
_ODD_BYTES = (
    b"",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b":",
    b",",
    b"NaN",
    b"1e999",
    b"9" * 400,
    b"\xed\xa0\x80",
    b"\x1f\x8b",
    b"#",
    b"- ",
    b"!!int x",
    b"&a ",
    b"*a",
    b"<<: ",
    b"\t",
    b"\x1b[0m",
)


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Cut, repeat, exchange or insert a few bytes, in one to three places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice((1, 1, 2, 8, 64, 1_000)))
        match rng.randrange(7):
            case 0:
                content = content[:start]
            case 1:
                content = content[:start] + content[end:]
            case 2:
                content = content[:end] + content[start:]
            case 3:
                content = content[:start] + bytes([rng.randrange(256)]) + content[start + 1 :]
            case 4:
                content = content[:start] + content[start:end] * rng.choice((2, 50)) + content[end:]
            case 5:
                depth, brackets = rng.choice(DEPTHS), rng.choice((b"[]", b"{}", b"()"))
                content = content[:start] + brackets[:1] * depth + content[start:]
            case _:
                content = content[:start] + rng.choice(_ODD_BYTES) + content[start:]
    return content


def mutate_value(value: object, rng: random.Random) -> object:
    """Return a value of JSON with something exchanged, dropped, doubled or renamed, in one to three places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _changed(value, rng)
    return value


def _changed(value: object, rng: random.Random) -> object:
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
                return [*value[:place], _changed(value[place], rng), *value[place + 1 :]]
    name = rng.choice(list(value))
    match rng.randrange(8):
        case 0:
            return {key: item for key, item in value.items() if key != name}
        case 1:
            return {(f"{key}x" if key == name else key): item for key, item in value.items()}
        case 2:
            return {**value, rng.choice(("x", "", "id", "__class__", "\ud800")): rng.choice(ODD_VALUES)}
        case _:
            return {**value, name: _changed(value[name], rng)}


def dumped(value: object, rng: random.Random) -> bytes:
    """Return a value as JSON, odd numbers and all, with depth where it was asked for."""
    depth, brackets = rng.choice(DEPTHS), rng.choice((("[", "]"), ('{"a":', "}")))
    text = json.dumps(value).replace(json.dumps(_DEEP), f"{brackets[0] * depth}0{brackets[1] * depth}")
    return text.encode("utf-8")


def mutate_json_file(path: Path, rng: random.Random, *, each_line: bool = False) -> None:
    """Damage a file of JSON, mostly so that it stays one; ``each_line`` is for a value a line."""
    content = path.read_bytes()
    lines = content.splitlines() if each_line else [content]
    place = rng.randrange(len(lines) or 1)
    try:
        value = json.loads(lines[place])
    except (ValueError, IndexError):  # it is damaged already
        value = _DEEP
    if rng.random() < 0.25 or value == _DEEP:
        path.write_bytes(mutate_bytes(content, rng))
    else:
        lines[place] = dumped(mutate_value(value, rng), rng)
        path.write_bytes(b"\n".join(lines) + (rng.choice((b"\n", b"")) if each_line else b""))


def mutate_weights(path: Path, rng: random.Random) -> None:
    """Damage the table at the beginning of a safetensors file; behind it are numbers, of which any is as good."""
    content = path.read_bytes()
    path.write_bytes(mutate_bytes(content[:_TABLE_BYTES], rng) + content[_TABLE_BYTES:])


def misplace(path: Path, rng: random.Random) -> None:
    """Put something that is no such file, or folder, in its place."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    put: list[Callable[[], object]] = [
        lambda: None,
        path.mkdir,
        lambda: os.symlink(path, path),
        lambda: os.symlink(path.with_name("nowhere"), path),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(rng.randbytes(300)),
        lambda: path.write_bytes(b"\x00" * 5_000),
    ]
    rng.choice(put)()
