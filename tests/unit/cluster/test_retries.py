import pytest
from ray.exceptions import ActorDiedError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerHealthCheckFailedError

from coordexp.cluster.retries import telling_failure
from coordexp.errors import DataError

DEAD = WorkerHealthCheckFailedError("lost", ActorDiedError())
DIED = "died: it was killed, ran out of memory, or its node is gone"


def raised(error):
    return UserExceptionWithTraceback(error, "Traceback (most recent call last):\n  ...")


@pytest.mark.parametrize(
    ("failures", "sentence"),
    [
        ({0: DEAD}, f"worker 0 {DIED}"),
        ({1: DEAD, 0: DEAD}, f"worker 0 {DIED}"),
        (
            {0: raised(RuntimeError("Connection closed by peer\nmore")), 1: raised(DataError("a.json: no images"))},
            "worker 1: a.json: no images",
        ),
        ({0: DEAD, 3: raised(RuntimeError("shapes do not match"))}, "worker 3: RuntimeError: shapes do not match"),
        ({0: raised(KeyError("x"))}, "KeyError: 'x'"),
    ],
)
def test_of_several_failures_the_one_that_tells_most_is_told(failures, sentence):
    assert telling_failure(failures) == sentence
