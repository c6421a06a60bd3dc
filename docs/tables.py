"""What pages list: keys in ``docs/configuration.md``, loss terms and what is known of them in ``docs/LOSSES.md``.

``python docs/tables.py`` writes them there; tests compare.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from coordexp.config.schema import KEYS, ExperimentConfig
from coordexp.config.schema.fields import Key
from coordexp.config.trees import leaves
from coordexp.config.yaml_file import read_mapping
from coordexp.files import JsonValue
from coordexp.limits import MAX_COUNT
from coordexp.losses.term import Term
from coordexp.losses.terms import loss_terms
from coordexp.metrics import loss_metric
from coordexp.shipped import shipped_experiments
from coordexp.statistics.intervals import ALPHA

COMMAND = "python docs/tables.py"
_RESULTS = Path(__file__).parent.parent / "results"
KEY_PAGE, TERM_PAGE = (Path(__file__).with_name(name) for name in ("configuration.md", "LOSSES.md"))
BEGIN = f"<!-- the tables below are written by: {COMMAND} -->"
END = "<!-- end of the tables -->"
RESULTS_BEGIN = f"<!-- the table of results is written by: {COMMAND} -->"
RESULTS_END = "<!-- end of the table of results -->"
_KEY_HEAD = "| key | values | default | role | what it does |\n|---|---|---|---|---|"
_TERM_HEAD = "| term | sum over a batch | divided by the number of | knobs | logged as |\n|---|---|---|---|---|"
_STUDIES = {
    "shapes": "drawn shapes",
    "amount_1": "fresh shapes",
    "amount_4": "four times as many",
    "amount_16": "sixteen times as many",
    "photographs": "photographs",
}
"""Folder below results -> head of its column."""
_LESSONS = {
    ("C", "A"): "L1 and GIoU, beside cross-entropy",
    ("A_soft", "A"): ".2 of the Gaussian target, beside cross-entropy",
    ("B", "A"): "L1 and GIoU, in place of cross-entropy",
    ("D", "A"): "soft CE, W1 and gate, in place of cross-entropy",
    ("C_D", "C"): "soft CE, W1 and gate, beside all of C",
    ("D", "C"): "soft CE, W1 and gate, in place of all of C",
    ("B_gate", "B"): "the gate, beside L1 and GIoU",
}
_PLAIN = {"boolean": "`true`, `false`", "null": "`null`", "object": "mapping"}
_Schema = Mapping[str, JsonValue]


def key_tables() -> str:
    """Return a table of every section, in the order of the schema."""
    schema = ExperimentConfig.model_json_schema()
    base = leaves(read_mapping(shipped_experiments() / "base.yaml").tree)
    return "\n\n".join(_section(name, schema, base) for name in ExperimentConfig.model_fields)


def _section(name: str, schema: _Schema, base: _Schema) -> str:
    about = _resolved(_at(schema, "properties", name), schema)["description"]
    rows = [_row(key, schema, base) for key in KEYS.values() if key.name.startswith(f"{name}.")]
    return "\n".join([f"## {name}", "", str(about).partition("\n")[0], "", _KEY_HEAD, *rows])


def _row(key: Key, schema: _Schema, base: _Schema) -> str:
    field = _field(key.name, schema)
    if "default" in field:
        default = _code(field["default"])
        if key.role != "name" and base.get(key.name, field["default"]) != field["default"]:
            default += f"; `base.yaml`: {_code(base[key.name])}"
    else:
        default = "none"
    cells = [f"`{key.name}`", ", or ".join(dict.fromkeys(_words(field, schema))), default, key.role, key.description]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def _field(dotted: str, schema: _Schema) -> _Schema:
    """Return what the JSON schema says of a key; a section may be one of several kinds of value."""
    found: _Schema = schema
    for name in dotted.split("."):
        kinds = [_resolved(kind, schema) for kind in _kinds(_resolved(found, schema))]
        found = next(_at(kind, "properties", name) for kind in kinds if name in _at(kind, "properties"))
    return found


def _words(field: _Schema, schema: _Schema) -> Iterator[str]:
    """Yield in words what a key may be."""
    for kind in _kinds(field):
        match _resolved(kind, schema):
            case {"enum": list(values)}:
                yield ", ".join(f"`{value}`" for value in values)
            case {"type": "integer" | "number"} as number:
                yield _number(number)
            case {"type": "string"} as text:
                yield "path" if text.get("format") == "path" else "name" if "pattern" in text else "text"
            case {"type": "array", "items": dict(item)}:
                yield f"list of: {', or '.join(_words(item, schema))}"
            case {"type": "object", "properties": dict(names)}:
                yield f"mapping of {', '.join(f'`{name}`' for name in names)}"
            case plain:
                yield _PLAIN[str(plain["type"])]


def _number(schema: _Schema) -> str:
    limits = [
        f"{sign} {schema[name]:,}"
        for name, sign in (("exclusiveMinimum", ">"), ("minimum", "≥"), ("exclusiveMaximum", "<"), ("maximum", "≤"))
        if name in schema and schema[name] != MAX_COUNT  # that of every count
    ]
    kind = "whole number" if schema["type"] == "integer" else "number"
    return f"{kind} {', '.join(limits)}".strip()


def _kinds(field: _Schema) -> list[_Schema]:
    return cast("list[_Schema]", field["anyOf"]) if "anyOf" in field else [field]


def _resolved(field: _Schema, schema: _Schema) -> _Schema:
    reference = field.get("$ref")
    return _at(schema, "$defs", reference.rpartition("/")[2]) if isinstance(reference, str) else field


def _at(tree: _Schema, *names: str) -> _Schema:
    for name in names:
        tree = cast("_Schema", tree.get(name, {}))
    return tree


def _code(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def term_row(term: type[Term]) -> str:
    knobs = ", ".join(
        f"`{name}: {json.dumps(field.default)}`" + (f" ({field.description})" if field.description else "")
        for name, field in term.model_fields.items()
    )
    metric = loss_metric("train", term.metric_name())
    cells = [f"`{term.name}`", term.formula, f"`{term.unit}`", knobs, f"`{metric}`"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def results_table() -> str:
    """Return for each change of the loss the difference of AP in each committed study that has both groups."""
    numbers = {study: json.loads((_RESULTS / study / "numbers.json").read_bytes()) for study in _STUDIES}
    lines = [f"| what changes | groups | {' | '.join(_STUDIES.values())} |", "|---|---|" + "---|" * len(_STUDIES)]
    for (group, other), lesson in _LESSONS.items():
        cells = [_difference(of_study["pairs"], group, other) for of_study in numbers.values()]
        lines.append(f"| {lesson} | {group} &minus; {other} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _difference(pairs: Mapping[str, Mapping[str, object]], group: str, other: str) -> str:
    """Return a difference and its interval, bold if it holds after Holm's correction for all pairs of the study."""
    backwards = f"{group} - {other}" not in pairs
    pair = pairs.get(f"{other} - {group}" if backwards else f"{group} - {other}")
    if pair is None:
        return ""
    difference, (low, high) = cast("float", pair["difference"]), cast("tuple[float, float]", pair["interval"])
    if backwards:
        difference, low, high = -difference, -high, -low
    cell = f"{_signed(difference)} ({_signed(low)} to {_signed(high)})"
    return f"**{cell}**" if cast("float", pair["p_holm"]) < ALPHA else cell


def _signed(difference: float) -> str:
    return f"{difference:+.3f}".replace("0.", ".", 1).replace("-", "&minus;")


def _write(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(f"{begin}\n")
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    _write(KEY_PAGE, key_tables())
    _write(TERM_PAGE, "\n".join([_TERM_HEAD, *map(term_row, loss_terms().values())]))
    _write(TERM_PAGE, results_table(), RESULTS_BEGIN, RESULTS_END)
