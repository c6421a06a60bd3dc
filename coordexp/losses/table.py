"""The table of loss terms in ``docs/LOSSES.md``.

``python -m coordexp.losses.table`` prints it; ``python -m coordexp.losses.table docs/LOSSES.md`` writes it there.
"""

import json
import sys
from pathlib import Path

from coordexp.files import write_between
from coordexp.losses.term import Term
from coordexp.losses.terms import loss_terms
from coordexp.metrics import loss_metric

COMMAND = "python -m coordexp.losses.table docs/LOSSES.md"
BEGIN = f"<!-- the table below is written by: {COMMAND} -->"
END = "<!-- end of the table -->"
_HEAD = "| term | sum over a batch | divided by the number of | knobs | logged as |\n|---|---|---|---|---|"


def row(term: type[Term]) -> str:
    knobs = ", ".join(
        f"`{name}: {json.dumps(field.default)}`" + (f" ({field.description})" if field.description else "")
        for name, field in term.model_fields.items()
    )
    metric = loss_metric("train", term.metric_name())
    cells = [f"`{term.name}`", term.formula, f"`{term.unit}`", knobs, f"`{metric}`"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table() -> str:
    return "\n".join([_HEAD, *(row(term) for term in loss_terms().values())])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_between(Path(sys.argv[1]), BEGIN, END, table())
    else:
        sys.stdout.write(table() + "\n")
