"""An evaluation on many Ray workers: each has the model, takes one queue of images after the other, sends back records.

Queues are those of one process, and the files are written here, in the order of the images: the
result is the same to the byte for any number of workers that compute alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import ray
from ray.actor import ActorClass, ActorProxy
from ray.exceptions import RayActorError, RayTaskError

from coordexp.cluster.capacity import resources_text, workers_on
from coordexp.errors import CoordExpError, ResourceError
from coordexp.evaluate.evaluation import SplitEvaluation
from coordexp.evaluate.generate.decode import SplitDecoder
from coordexp.evaluate.job import EvaluationJob, open_decoder, open_evaluation
from coordexp.evaluate.objects import ImageRecord
from coordexp.metrics import Decoding
from coordexp.runs.folder import EvaluationFolder

_MAX_RESTARTS = 2
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Workers:
    """What an evaluation asks of the cluster.

    Attributes:
        num_workers: processes with a model each.
        cpus: CPUs, and threads, of each.
        gpus: GPUs of each.
    """

    num_workers: int
    cpus: int = 1
    gpus: float = 0.0


class EvaluationWorker:
    """One model in one process."""

    def __init__(self, job: EvaluationJob) -> None:
        """Load nothing yet: what a constructor raises cannot be recognised in the error that Ray makes of it."""
        self._job = job
        self._opened: SplitDecoder | None = None

    @ray.method
    def queues(self) -> list[list[int]]:
        """Return the queues of the job, the same in every worker."""
        return self._decoder().queues

    @ray.method
    def hardware(self) -> str:
        """Return the name of the device of this worker."""
        return self._decoder().hardware

    @ray.method
    def decode(self, decoding: Decoding, queue: Sequence[int]) -> list[ImageRecord]:
        """Generate and parse one queue."""
        return self._decoder().decode(decoding, [queue])

    def _decoder(self) -> SplitDecoder:
        if self._opened is None:
            self._opened = open_decoder(self._job, open_evaluation(self._job))
        return self._opened


def evaluate_on_ray(
    job: EvaluationJob, evaluation: SplitEvaluation, workers: Workers, *, output: Path, on_images: Callable[[int], None]
) -> dict[str, float]:
    """Evaluate on the Ray cluster this process has joined.

    A worker that dies is started again, up to twice, and its queue is done again.

    Args:
        job: checkpoint, data and settings; its paths must lead to the same files on every node.
        evaluation: the images of the job.
        workers: how many, and what each needs.
        output: folder of the results.
        on_images: called with the number of images just finished.

    Returns:
        The metrics by name.

    Raises:
        CoordExpError: what a worker raised, as in one process.
        ResourceError: if the cluster is too small, or a worker died three times.
    """
    check_fits(workers)
    job = replace(absolute(job), num_threads=job.num_threads or workers.cpus)
    actor: ActorClass[EvaluationWorker] = ray.remote(
        num_cpus=workers.cpus, num_gpus=workers.gpus, max_restarts=_MAX_RESTARTS, max_task_retries=_MAX_RESTARTS
    )(EvaluationWorker)
    pool = [actor.remote(job) for _ in range(workers.num_workers)]
    try:
        queues, owners = _get(pool[0].queues.remote()), dict[int, ActorProxy[EvaluationWorker]]()
        return evaluation.run(
            lambda way: _decode_all(pool, way, queues, on_images, owners),
            EvaluationFolder(output),
            hardware=f"{workers.num_workers} x {_get(pool[0].hardware.remote())}",
        )
    finally:
        for worker in pool:
            ray.kill(worker)  # pyright: ignore[reportArgumentType]


def check_fits(workers: Workers) -> None:
    """Refuse what the cluster can never give: Ray would wait for ever.

    Raises:
        ResourceError: if the workers do not fit on the nodes that are there.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if sum(workers_on(node, cpus=workers.cpus, gpus=workers.gpus) for node in nodes) < workers.num_workers:
        raise ResourceError(
            f"the evaluation needs {workers.num_workers} x ({workers.cpus} CPUs, {workers.gpus:g} GPUs), but the "
            f"cluster has {resources_text(nodes)}; change --num-workers, --cpus-per-worker or --gpus-per-worker"
        )


def absolute(job: EvaluationJob) -> EvaluationJob:
    """Return the job with absolute paths: workers start elsewhere."""
    model = str(Path(job.model).resolve()) if Path(job.model).is_dir() else job.model
    adapter = None if job.adapter is None else job.adapter.resolve()
    return replace(
        job,
        model=model,
        adapter=adapter,
        annotations=job.annotations.resolve(),
        images=job.images.resolve(),
        generations=None if job.generations is None else job.generations.resolve(),
    )


def _decode_all(
    pool: Sequence[ActorProxy[EvaluationWorker]],
    decoding: Decoding,
    queues: Sequence[list[int]],
    on_images: Callable[[int], None],
    owners: dict[int, ActorProxy[EvaluationWorker]],
) -> list[list[ImageRecord]]:
    """Give each worker the next queue as soon as it is free: of those without an owner, or its own, which it knows."""
    waiting = dict(enumerate(queues))
    busy: dict[ray.ObjectRef[list[ImageRecord]], ActorProxy[EvaluationWorker]] = {}
    parts: list[list[ImageRecord]] = []
    free = list(pool)
    while waiting or busy:
        for worker in list(free):
            number = next((number for number in waiting if owners.setdefault(number, worker) is worker), None)
            if number is not None:
                free.remove(worker)
                busy[worker.decode.remote(decoding, waiting.pop(number))] = worker
        ready, _ = ray.wait(list(busy), num_returns=1)
        for reference in ready:
            free.append(busy.pop(reference))
            parts.append(_get(reference))
            on_images(len(parts[-1]))
    return parts


def _get(reference: "ray.ObjectRef[_Result]") -> _Result:
    """Return a worker's answer; what it raised comes out as if raised here."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, CoordExpError):
            raise error.cause from None
        raise
    except RayActorError as error:
        raise ResourceError(
            f"an evaluation worker died {_MAX_RESTARTS + 1} times; expected one that lives: give it more memory, or "
            f"lower --batch-size ({(str(error).strip().splitlines() or ['no reason is known'])[0]})"
        ) from None
