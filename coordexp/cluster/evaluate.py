"""An evaluation on many Ray workers: each has the model, answers queues of images and sends the answers back.

The queues are those that a single process would have, and the files are written here, in the order of the images. So
the result is the same to the byte for any number of workers that compute alike.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import ray
from ray.actor import ActorClass, ActorProxy
from ray.exceptions import RayActorError, RayTaskError

from coordexp.cluster.capacity import resources_text, workers_on
from coordexp.cluster.waiting import entrypoint_text, explain_actors, grows_by_itself, nodes_for_work, offers_cpus
from coordexp.errors import CoordExpError, ResourceError
from coordexp.evaluate.answers import ReadAnswer
from coordexp.evaluate.checkpoint import open_data, open_evaluation
from coordexp.evaluate.evaluation import EvaluationImages, ModelEvaluation, score_answers
from coordexp.evaluate.generated_by import GeneratedBy
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.metrics import Decoding
from coordexp.runs.folder import EvaluationFolder

_MAX_RESTARTS = 2
_LOOK_SECONDS = 10.0  # between two looks at what workers wait for
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Workers:
    """What an evaluation asks of the cluster."""

    num_workers: int  # processes, each with a model
    cpus: int = 1  # of each worker, and threads in it
    gpus: float = 0.0  # of each worker


class EvaluationWorker:
    """One model in one process."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self._settings = settings
        self._opened: ModelEvaluation | None = None

    @ray.method
    def queues(self) -> list[list[int]]:
        """Return the queues of the evaluation, the same in every worker."""
        return self._evaluation().queues

    @ray.method
    def hardware(self) -> str:
        return self._evaluation().answering.hardware

    @ray.method
    def generated_by(self, num_workers: int) -> dict[Decoding, GeneratedBy]:
        """Return which engine writes the answers, for a record on all ``num_workers`` of them."""
        return GeneratedBy.of_evaluation(self._evaluation().answering, self._settings, num_processes=num_workers)

    @ray.method
    def answer(self, decoding: Decoding, queue: Sequence[int]) -> list[ReadAnswer]:
        return self._evaluation().answer(decoding, [queue])

    def _evaluation(self) -> ModelEvaluation:
        # Not in the constructor: Ray wraps its errors so that ours cannot be recognised in them.
        if self._opened is None:
            self._opened = open_evaluation(self._settings, open_data(self._settings))
        return self._opened


def evaluate_on_ray(
    settings: EvaluationSettings,
    data: EvaluationImages,
    workers: Workers,
    *,
    output: EvaluationFolder,
    on_images: Callable[[int], None],
    on_wait: Callable[[str], None] = lambda sentence: None,
) -> dict[str, float]:
    """Evaluate on the Ray cluster that this process has joined, and return the metrics by name.

    A worker that dies is started again, up to twice, and answers its queue again.

    Args:
        settings: of the evaluation. Their paths must lead to the same files on every node.
        data: the images.
        workers: what is asked of the cluster.
        output: folder of the results.
        on_images: is called with the number of images just finished.
        on_wait: is called with what workers without a place wait for, each time that this changes.

    Raises:
        ResourceError: if the cluster can never hold the workers, or if a worker died too often.
    """
    _check_fits(workers)
    settings = replace(absolute(settings), num_threads=settings.num_threads or workers.cpus)
    actor: ActorClass[EvaluationWorker] = ray.remote(
        num_cpus=workers.cpus, num_gpus=workers.gpus, max_restarts=_MAX_RESTARTS, max_task_retries=_MAX_RESTARTS
    )(EvaluationWorker)
    pool = [actor.remote(settings) for _ in range(workers.num_workers)]
    try:
        queues_of_first = pool[0].queues.remote()
        _say_wait(queues_of_first, workers, on_wait)
        queues = _get(queues_of_first)
        return score_answers(
            data,
            settings,
            lambda way: _answer_all(pool, way, queues, on_images),
            output,
            hardware=f"{workers.num_workers} x {_get(pool[0].hardware.remote())}",
            generated_by=_get(pool[0].generated_by.remote(workers.num_workers)),
        )
    finally:
        for worker in pool:
            ray.kill(worker)  # pyright: ignore[reportArgumentType]


def _check_fits(workers: Workers) -> None:
    """Raise a ResourceError if the cluster can never hold the workers; Ray would wait for ever."""
    nodes = nodes_for_work()
    if _fit(workers, nodes.left) or not offers_cpus(nodes.whole) or grows_by_itself():
        return
    if _fit(workers, nodes.whole):
        raise ResourceError(f"{_needs(workers)}, but {entrypoint_text(nodes.whole)}")
    raise ResourceError(
        f"{_needs(workers)}, but the cluster has {resources_text(nodes.whole)}; change --num-workers, "
        "--cpus-per-worker or --gpus-per-worker"
    )


def _fit(workers: Workers, nodes: Sequence[Mapping[str, float]]) -> bool:
    num_places = sum(workers_on(node, cpus=workers.cpus, gpus=workers.gpus) for node in nodes)
    return num_places >= workers.num_workers


def _needs(workers: Workers) -> str:
    worker = {"CPU": workers.cpus, "GPU": workers.gpus}
    return f"the evaluation needs {workers.num_workers} x {resources_text([worker])}"


def _say_wait(reference: "ray.ObjectRef[_Result]", workers: Workers, on_wait: Callable[[str], None]) -> None:
    """Wait for a worker's first answer, and say meanwhile why it has no place."""
    last_sentence = ""
    while not ray.wait([reference], timeout=_LOOK_SECONDS)[0]:
        sentence = explain_actors(_needs(workers)) or ""
        if sentence and sentence != last_sentence:
            on_wait(sentence)
        last_sentence = sentence


def absolute(settings: EvaluationSettings) -> EvaluationSettings:
    """Return the settings with absolute paths, since workers start in another folder."""

    def resolved(path: Path | None) -> Path | None:
        return None if path is None else path.resolve()

    model = Path(settings.model)
    return replace(
        settings,
        model=str(model.resolve()) if model.is_dir() else settings.model,
        adapter=resolved(settings.adapter),
        annotations=settings.annotations.resolve(),
        images=settings.images.resolve(),
        set_path=resolved(settings.set_path),
        generations=resolved(settings.generations),
    )


def _answer_all(
    pool: Sequence[ActorProxy[EvaluationWorker]],
    decoding: Decoding,
    queues: Sequence[list[int]],
    on_images: Callable[[int], None],
) -> list[ReadAnswer]:
    """Have every queue answered, and return the answers as they come."""
    # A queue has the same worker under every decoding: for free decoding the worker keeps its answers of constrained
    # decoding that the grammar did not change.
    waiting = [pool[number % len(pool)].answer.remote(decoding, queue) for number, queue in enumerate(queues)]
    all_answers: list[ReadAnswer] = []
    while waiting:
        (ready,), waiting = ray.wait(waiting)
        answers = _get(ready)
        all_answers += answers
        on_images(len(answers))
    return all_answers


def _get(reference: "ray.ObjectRef[_Result]") -> _Result:
    """Return a worker's answer. An error of ours that the worker raised is raised here, too."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, CoordExpError):
            raise error.cause from None
        raise
    except RayActorError as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else "no reason is known"
        raise ResourceError(
            f"an evaluation worker died {_MAX_RESTARTS + 1} times ({reason}); give it more memory, or lower "
            "--batch-size"
        ) from None
