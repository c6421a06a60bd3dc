"""What pages list from the code: the keys in ``docs/configuration.md``, the loss terms in ``docs/LOSSES.md``.

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

COMMAND = "python docs/tables.py"
KEY_PAGE, TERM_PAGE = (Path(__file__).with_name(name) for name in ("configuration.md", "LOSSES.md"))
BEGIN = f"<!-- the tables below are written by: {COMMAND} -->"
END = "<!-- end of the tables -->"
_KEY_HEAD = "| key | values | default | role | what it does |\n|---|---|---|---|---|"
_TERM_HEAD = "| term | sum over a batch | divided by the number of | knobs | logged as |\n|---|---|---|---|---|"
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


def _write(page: Path, text: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    _write(KEY_PAGE, key_tables())
    _write(TERM_PAGE, "\n".join([_TERM_HEAD, *map(term_row, loss_terms().values())]))
