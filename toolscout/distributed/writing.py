"""Has a language model write on the workers of a cluster, in the same batches as in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from toolscout.distributed.cluster import Cluster
from toolscout.distributed.workers import Workers
from toolscout.errors import BadRequest
from toolscout.synth.saved_texts import Answers, Batch, answers
from toolscout.synth.writing import RequestWriter


class ClusterWriting:
    """Completes batches of conversations on a cluster, for `SavedTexts`.

    What a local model draws depends on the other conversations of its batch: the batches are not split.
    """

    def __init__(self, cluster: Cluster, spec: str, seed: int, tell: Callable[[str], None] | None = None) -> None:
        """`spec` and `seed` open the model on each worker. Raises BadRequest for an endpoint: one process asks it."""
        if spec.lower().startswith(("http://", "https://")):
            raise BadRequest("an endpoint is asked by one process; leave --ray out, and see --concurrency")
        self._cluster, self._opening, self._tell = cluster, partial(_opened, spec, seed), tell

    def __call__(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Answers]]:
        """Yield each batch with its answers, in the order in which they are done."""
        with Workers[Batch, Answers](self._cluster, self._opening, self._tell) as workers:
            yield from workers.results(batches)


def _opened(spec: str, seed: int) -> Callable[[Batch], Answers]:
    """Open the model on a worker, and return what completes a batch with it."""
    return partial(answers, RequestWriter.open(spec, seed=seed).llm)
