"""A retriever that follows a store: every change of tools, vectors and feedback, whichever process made it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from toolscout.core.answer import Allowed
from toolscout.core.scope import Scope
from toolscout.core.tool import Listing
from toolscout.errors import BadModel, DiskFull, MissingEncoder, StoreUnavailable
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Retriever
from toolscout.search import index_snapshot
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.encoder_fit import fit_options_of, is_fitted, verdict_model_of
from toolscout.search.feedback_sync import Feedback
from toolscout.search.similarity_baseline import SimilarityBaseline
from toolscout.search.tool_need import NeedEstimator
from toolscout.search.verdict import VerdictModel
from toolscout.stores.base import Store

_FOLLOWED_AT_ONCE = 100_000
# Up to so many tools an index is settled within a fraction of a second.
_SETTLED_UP_TO = 3_000
_RETRY_S = 1.0  # after the store could not be reached
_LOG = logging.getLogger(__name__)


class LiveIndex:
    """An empty retriever, filled from a store and kept up to date. Several threads may use it.

    feedback, baseline, need_estimator: what the store's feedback, the catalogue and the encoder add to its rankings.
    """

    def __init__(self, store: Store, retriever: Retriever) -> None:
        """Nothing is read before `refresh`."""
        self.store, self.retriever = store, retriever
        self.feedback = Feedback(store, retriever)
        self.baseline = SimilarityBaseline(store, retriever)
        self.need_estimator = NeedEstimator(retriever)
        self.version = 0
        self._lock = threading.RLock()
        self._linking = threading.Lock()  # held by the thread that builds a search graph
        self._saving = threading.Lock()  # held by the thread that saves a snapshot
        # How many tools have changed since the last snapshot, and since the index was opened from one.
        self._unsaved_changes = 0
        self._since_open: int | None = None
        self._snapshots: Path | None = None
        self._snapshot_problem = ""
        self._assigned_ids: index_snapshot.AssignedIds | None = None
        self._stamp: int | None = None
        self._settled = 0
        self._retry_at = 0.0
        self._cursor = 0
        self._fit_options: FitOptions | None = None
        self._verdict_model: VerdictModel | None = None
        self._fitted: bool | None = None
        # Caches about callers, emptied with each commit, which may change permissions.
        self._counts: dict[Allowed | None, int] = {}
        self._principals: dict[str, Allowed] = {}

    def keep_in(self, folder: Path, state: index_snapshot.SnapshotState | None) -> None:
        """Save snapshots of the index in this folder; `state`: of the snapshot that the index was opened from."""
        self._snapshots = folder
        if state is not None:
            self.version, self._cursor, self.feedback.cursor = state.version, state.cursor, state.feedback
            self.baseline.restore(state.baseline)
            self._since_open = 0
            if index_snapshot.is_outdated(self.retriever):
                self._unsaved_changes = len(self.retriever)  # enough to save it again

    def assign_ids(self, model: Path) -> None:
        """Keep the ids that a model assigns to tools."""
        self._assigned_ids = index_snapshot.AssignedIds(self.store, model, self.retriever)

    @property
    def fit_options(self) -> FitOptions:
        """The curve of catalogue fit that belongs to the encoder, read at the first use."""
        if self._fit_options is None:
            self._fit_options = fit_options_of(self.encoder())
        return self._fit_options

    @property
    def verdict_model(self) -> VerdictModel:
        """The verdict model of the encoder; read at the first use."""
        if self._verdict_model is None:
            self._verdict_model = verdict_model_of(self.encoder())
        return self._verdict_model

    @property
    def knows_reranker(self) -> bool:
        """Whether the verdict model was fitted with scores of this retriever's reranker."""
        known = self.verdict_model.reranker
        try:
            reranker = self.retriever.reranker if known else None
        except BadModel:  # it reranks nothing then
            return False
        return reranker is not None and reranker.fingerprint == known

    @property
    def fitted(self) -> bool:
        """Whether the encoder has a need head and a curve of its own; True without an encoder."""
        if self._fitted is None:
            encoder = self.encoder()
            self._fitted = encoder is None or is_fitted(encoder)
        return self._fitted

    def read_verdicts(self) -> None:
        """Read anew what was fitted to the encoder."""
        self._fit_options = self._verdict_model = self._fitted = None
        self.need_estimator = NeedEstimator(self.retriever)

    def encoder(self) -> TextEncoder | None:
        """The encoder of the retriever; None where it has none, or none is installed."""
        with suppress(MissingEncoder):
            return self.retriever.encoder
        return None

    # What a caller may see.

    def count(self, allowed: Allowed | None = None) -> int:
        """How many tools there are, or how many of them a caller may see."""
        counts = self._counts  # taken first: a count made while another thread applies a change must not be cached
        counted = counts.get(allowed)
        if counted is None:
            try:
                counted = counts[allowed] = self.store.count(allowed)
            except StoreUnavailable:
                if self._stamp is None:
                    raise
                ids = self.retriever.ids()  # those that are searched; not cached
                return len(ids) if allowed is None else sum(map(allowed.permits, ids))
        return counted

    def permitted(self, allowed: Allowed | str | None) -> Allowed | None:
        """What a caller may see; a principal's permissions are cached until the next commit."""
        if not isinstance(allowed, str):
            return allowed
        if allowed not in self._principals:
            self._principals[allowed] = self.store.permissions(allowed)
        return self._principals[allowed]

    def words_only(self, allowed: Allowed | None = None) -> int:
        """How many tools, of those a caller may see, have no vector yet and are found by their words alone."""
        return self.retriever.pending(Scope(allowed))

    def not_embedded(self, allowed: Allowed | None = None) -> int:
        """How many of those have no vector yet; the others have no id, since a model has none left for them."""
        return self.words_only(allowed) - self.retriever.without_id(Scope(allowed))

    # Changes.

    @property
    def current(self) -> bool:
        """Whether it has all that is known to be committed."""
        return self.store.stamp() == self._stamp

    def refresh(self, wait: bool = True) -> None:
        """Apply what this or any other process has committed; cheap if that is nothing.

        While the store cannot be reached, the state before is searched.
        `wait`: if another thread is doing so already, wait for it; otherwise go on with the state before.
        """
        if self.store.stamp() == self._stamp or not self._lock.acquire(blocking=wait or self._stamp is None):
            return
        try:
            if time.monotonic() >= self._retry_at:
                self._follow()
        except StoreUnavailable as error:
            if self._stamp is None:
                raise
            _LOG.warning("answers are of catalogue version %d for now: %s", self.version, error)
            self._retry_at = time.monotonic() + _RETRY_S
        finally:
            self._lock.release()

    def _follow(self) -> None:
        stamp, version = self.store.stamp(), self.version
        encoder = self.encoder()
        fingerprint = encoder.fingerprint if encoder else ""
        self._follow_tools(fingerprint)
        self._follow_vectors(fingerprint)
        self.feedback.follow()
        if self._assigned_ids:
            self._assigned_ids.keep()
        # A large catalogue takes time to count: once for each state of its tools, and not while a search waits.
        total = self._counts.get(None)
        if total is not None and self.version != version:
            total = self.store.count()
        self._counts, self._principals = {} if total is None else {None: total}, {}
        self._stamp = stamp

    def _follow_tools(self, fingerprint: str) -> None:
        if self.version == 0 and fingerprint:
            self._cursor = self.store.last_vector(fingerprint)
        removed: list[str] = []
        arrived: list[Listing] = []
        version = self.version
        for change, listing in self.store.documents(self.version):
            version = change.version
            if listing is None:
                removed.append(change.tool_id)
            else:
                arrived.append(listing)
            if len(arrived) >= _FOLLOWED_AT_ONCE:
                self._apply(arrived, removed, fingerprint)
                arrived, removed = [], []
        self._apply(arrived, removed, fingerprint)
        self.version = version

    def _apply(self, arrived: list[Listing], removed: list[str], fingerprint: str) -> None:
        if removed:
            self.retriever.remove(removed)
        if arrived:
            digests = [listing.digest() for listing in arrived]
            if self._assigned_ids:
                self._assigned_ids.saw([listing.id for listing in arrived], digests)
            self.retriever.add(arrived, self.store.vectors(fingerprint, digests) if fingerprint else {})
        self._changed(len(removed) + len(arrived))

    def _changed(self, count: int) -> None:
        self._unsaved_changes += count
        if self._since_open is not None:
            self._since_open += count

    def _follow_vectors(self, fingerprint: str) -> None:
        if not fingerprint:
            return
        while pending := self.retriever.pending():
            batch = self.store.vectors_after(fingerprint, self._cursor)
            if not batch.digests:
                break
            self.retriever.take_vectors(dict(zip(batch.digests, batch.vectors, strict=True)))
            self._changed(pending - self.retriever.pending())
            self._cursor = batch.cursor  # behind it: what a model had no id for is tried again

    def settle(self) -> None:
        """Make answers those of an index that is built now, whatever changes led here. Nothing in large catalogues.

        Servers over one store then answer alike, although each has applied the changes in portions of its own.
        """
        if self.version != self._settled and len(self.retriever) <= _SETTLED_UP_TO:
            with self._lock:
                self.retriever.settle()
                self._settled = self.version
            self.baseline.forget()

    # Snapshots.

    def optimise(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Build the search graph if there are many vectors, and save a snapshot of the index.

        Searches and changes go on meanwhile. `stopped` is asked now and then; once it is true no graph is built.
        """
        with self._linking:
            if self.retriever.optimise(stopped):
                with self._lock:
                    # An earlier snapshot may have all tools, but not the graph.
                    self._unsaved_changes = max(self._unsaved_changes, len(self.retriever))
        self.save_snapshot()

    def save_snapshot(self) -> None:
        """Save a snapshot of the index beside the store, if enough has changed to be worth it.

        Searches and changes go on while it is written. Nothing is done where another thread is saving one.
        """
        index = self.retriever.index_part
        if self._snapshots is None or index is None or not self._saving.acquire(blocking=False):
            return
        try:
            with self._lock:
                changes, state = self._unsaved_changes, self._state_to_save()
                finish = index_snapshot.begin_write(self._snapshots, index, state) if state is not None else None
            if finish is not None:
                finish()
                with self._lock:
                    self._unsaved_changes -= changes
                self._snapshot_problem = ""
        except (OSError, DiskFull) as error:  # not fatal: the index can be built again
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            self._snapshot_problem = f"the index cannot be kept beside the store ({why}), which makes opening it slow"
        finally:
            self._saving.release()

    def pack(self, target: Path) -> index_snapshot.SnapshotState:
        """Write the kept snapshot into one archive, with the search graph; raises BadModel where none is kept."""
        if self._snapshots is None:
            raise BadModel("the index of a model folder is not kept beside the store; name a method with --retriever")
        self.optimise()
        return index_snapshot.pack(self._snapshots, target)

    def _state_to_save(self) -> index_snapshot.SnapshotState | None:
        """The state of the index, if enough has changed to save it; None otherwise."""
        if not self._unsaved_changes:
            return None
        count = self.count()
        if not index_snapshot.worth(count, self._unsaved_changes, self._since_open):
            return None
        return index_snapshot.SnapshotState(
            self.store.identity(),
            self.version,
            self._cursor,
            self.feedback.cursor,
            baseline=self.baseline.baseline(None, count) if self.words_only() < count else None,
            last=index_snapshot.last_changes(self.store, self.version),
        )

    def notes(self, allowed: Allowed | None) -> Iterator[str]:
        """What a caller should know of the index: a snapshot that cannot be kept, tools that are not embedded."""
        if self._snapshot_problem:
            yield self._snapshot_problem
        if not self.count(allowed):
            empty = "the catalogue is empty; add tools with: toolscout add SOURCE"
            yield empty if allowed is None else "there is no tool here that this caller may see"
        elif self.words_only(allowed):
            if self.encoder() is None:
                yield "no encoder is installed, words alone were searched; run: toolscout doctor"
            elif late := self.not_embedded(allowed):
                waiting = f"{late:,} of {self.count(allowed):,} tools are not embedded yet"
                yield f"{waiting}: found by words at most; run: toolscout embed, with the same --retriever if any"


class StoreIndex(LiveIndex):
    """What answers while the index of this process is built: the retriever reads the store itself."""

    def _follow(self) -> None:
        stamp = self.store.stamp()
        self.version = self._settled = self.store.version()
        self._counts, self._principals = {}, {}
        self._stamp = stamp
