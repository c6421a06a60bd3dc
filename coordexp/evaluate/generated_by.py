"""What wrote the answers behind a file of detections: ``generated_by.json``, and what a comparison says of it.

The same checkpoint writes other answers on another engine, in another precision, or in batches of another size. A
comparison of two losses must not be one of two engines, so the engine is part of a row.

The detections themselves stay as they are: two engines that write the same boxes leave the same bytes.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.errors import DataError, counted
from coordexp.files import read_model, write_json
from coordexp.runs.folder import GENERATED_BY

if TYPE_CHECKING:
    from coordexp.evaluate.generate.model import AnsweringModel
    from coordexp.evaluate.settings import EvaluationSettings
    from coordexp.metrics import Decoding

UNKNOWN = "unknown"
_SHOWN_NAMES = 8


@dataclass(frozen=True)
class GeneratedBy:
    """The engine of one file of detections.

    Attributes:
        engine: ``coordexp``, or as whoever wrote the file calls it, such as ``vllm``.
        version: of the engine.
        precision: of the weights, such as ``bfloat16``.
        batch_size: images answered together; None where an engine forms its own batches.
        decoding: ``constrained`` or ``free``.
        penalties: what bent the choice of tokens, such as ``repetition 1.05``; ``none``.
        device: by name, with the number of processes.
        libraries: name -> version of what computes.
    """

    engine: str = UNKNOWN
    version: str = ""
    precision: str = UNKNOWN
    batch_size: int | None = None
    decoding: str = UNKNOWN
    penalties: str = UNKNOWN
    device: str = UNKNOWN
    libraries: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def here(
        cls, answering: "AnsweringModel", settings: "EvaluationSettings", decoding: "Decoding", *, num_processes: int
    ) -> "GeneratedBy":
        """Describe this process and those beside it, which generate as it does."""
        return cls(
            engine="coordexp",
            version=importlib.metadata.version("coordexp"),
            precision=str(answering.model.dtype).removeprefix("torch."),
            batch_size=settings.batch_size,
            decoding=decoding,
            penalties="none",
            device=f"{num_processes} x {answering.hardware}",
            libraries={name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        )

    @classmethod
    def of_evaluation(
        cls, answering: "AnsweringModel", settings: "EvaluationSettings", *, num_processes: int
    ) -> "dict[Decoding, GeneratedBy]":
        """Return what writes the answers of an evaluation: this engine, or whoever wrote the answers it is given."""
        if settings.generations is None:
            return {
                decoding: cls.here(answering, settings, decoding, num_processes=num_processes)
                for decoding in settings.decoding
            }
        given = generator_of(settings.generations).record or cls()
        return {decoding: replace(given, decoding=decoding) for decoding in settings.decoding}

    def write(self, detections: Path) -> None:
        """Write what generated a file of detections into the folder of that file."""
        write_json(detections.parent / GENERATED_BY, asdict(self), indent=1)


@dataclass(frozen=True)
class Generator:
    """What is known of a file's engine: the record, None without one; and why a record could not be read."""

    record: GeneratedBy | None = None
    problem: str = ""


def generator_of(detections: Path) -> Generator:
    """Return what generated a file of detections, as ``generated_by.json`` in its folder says.

    That file holds one record for all files of the folder; or, as in published results, one for each by its name up to
    the first dot.
    """
    path = detections.parent / GENERATED_BY
    if not path.is_file():
        return Generator()
    try:
        content = read_model(dict[str, object], path, what="what generated the detections beside it")
        if "engine" in content:
            return Generator(read_model(GeneratedBy, path, what="one record of an engine"))
        by_name = read_model(dict[str, GeneratedBy], path, what="a record of an engine for each file")
    except DataError as error:
        return Generator(problem=f"{error}; correct or delete it: what generated these detections is not known")
    return Generator(by_name.get(detections.name.partition(".")[0]))


def engine_sentences(generators: Mapping[str, Generator]) -> list[str]:
    """Say what the rows of a comparison share, and caution where they differ; nothing where nothing is known.

    Args:
        generators: by the name of each row, such as a group or a run.
    """
    problems = list(dict.fromkeys(generator.problem for generator in generators.values() if generator.problem))
    records = {name: generator.record for name, generator in generators.items() if generator.record is not None}
    if not records:
        return problems
    sentences: list[str] = []
    shared = [_written(name, values) for name, values in _values(records).items() if len(set(values.values())) == 1]
    if shared:
        rows = f"all {counted(len(records), 'row')}" if len(records) > 1 else next(iter(records))
        sentences.append(f"Generated alike, {rows}: {', '.join(part for part in shared if part)}.")
    for name, values in _values(records).items():
        if len(set(values.values())) > 1:
            sentences.append(
                f"CAUTION: rows were generated with another {name.replace('_', ' ')}: {_by_value(values)}. Another "
                "engine, precision or batch alone can change answers and AP; coordexp evaluate --check-engine measures "
                "by how much."
            )
    unknown = [name for name in generators if name not in records]
    if unknown:
        sentences.append(f"Not known what generated {_names(unknown)}: no {GENERATED_BY} beside their files.")
    return [*problems, *sentences]


def _values(records: Mapping[str, GeneratedBy]) -> dict[str, dict[str, str]]:
    """Return field -> row -> value as text, of what decides answers; ``decoding`` is the reading's own matter."""
    values: dict[str, dict[str, str]] = {}
    for of_field in fields(GeneratedBy):
        if of_field.name in ("libraries", "decoding"):
            continue
        values[of_field.name] = {name: str(getattr(record, of_field.name) or "") for name, record in records.items()}
    for library in sorted({library for record in records.values() for library in record.libraries}):
        values[library] = {name: record.libraries.get(library, "") for name, record in records.items()}
    return values


def _written(name: str, values: Mapping[str, str]) -> str:
    """Return a shared value as a person says it; "" for one that is not known."""
    value = next(iter(values.values()))
    if value in ("", UNKNOWN, "None"):
        return ""
    forms = {
        "engine": "{}", "version": "version {}", "precision": "{}", "batch_size": "batches of {}",
        "penalties": "penalties {}", "device": "on {}",
    }  # fmt: skip
    return forms.get(name, f"{name} {{}}").format(value)


def _by_value(values: Mapping[str, str]) -> str:
    """Return ``float32 (A, C), bfloat16 (vllm)``."""
    rows: dict[str, list[str]] = {}
    for name, value in values.items():
        rows.setdefault(value or UNKNOWN, []).append(name)
    return ", ".join(f"{value} ({_names(names)})" for value, names in rows.items())


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
