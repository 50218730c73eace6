"""Every retriever that is found keeps the contract."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.models.tiny_cross_encoder import cross_encoder
from tests.retrievers.contract import ClosedContract, Contract, Make, reopened
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords, examples
from toolscout.errors import BadModel
from toolscout.papers.masstool.published import MasstoolPublished, MasstoolPublishedOptions
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.centroid import Centroid
from toolscout.retrievers.colt import Colt
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.memory import Memory
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.registry import available, load_model, method
from toolscout.retrievers.rerank.retriever import Rerank, RerankOptions
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions

# Those that rank the tools they were trained on alone: here catalogue(60).
CLOSED = ("masstool_published",)
EMBEDDED: dict[str, Callable[..., Retriever]] = {
    "dense": Dense,
    "memory": Memory,
    "centroid": Centroid,
    "masstool": Masstool,
    "colt": Colt,
}
LEARNED = ["memory-learned", "centroid-learned", "masstool-learned", "masstool-trained", "colt-trained"]
# Those that are trained first, which needs torch.
TRAINED = {"toolgen", "toolweaver", "masstool-trained", "colt-trained", *CLOSED}
OPEN = [*sorted(set(available()) - set(CLOSED)), "hybrid-rrf", "rerank-bm25", *LEARNED]


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in TRAINED else name for name in names]


@cache
def fitted(kind: type[Masstool | Colt | MasstoolPublished]) -> Path:
    """A model over scenes of catalogue(60); a tower that has every weight above 0."""
    from tests.retrievers.towers import colt, masstool

    home = TemporaryDirectory()
    atexit.register(home.cleanup)
    folder = Path(home.name)
    if kind is MasstoolPublished:
        published = MasstoolPublished(MasstoolPublishedOptions(epochs=1, device="cpu"), HashedWords())
        published.fit([TrainingSet(scenes())], folder)
        return folder
    made = masstool(epochs=1) if kind is Masstool else colt(epochs=1)
    made.fit([TrainingSet(scenes())], folder)
    weights = {"graph": 0.5, "new_bonus": 0.1}
    made.retune(weights | ({"neighbour_weight": 0.5, "votes": 0.3} if kind is Masstool else {}))
    made.save(folder)
    return folder


@cache
def reranker() -> Path:
    """The folder of a tiny cross-encoder."""
    home = TemporaryDirectory()
    atexit.register(home.cleanup)
    return cross_encoder(Path(home.name))


def build(name: str) -> Retriever:
    if name in CLOSED:
        trained = MasstoolPublished.load(fitted(MasstoolPublished), HashedWords())
        trained.remove(trained.ids())
        return trained
    if name in EMBEDDED:
        return EMBEDDED[name](encoder=HashedWords())
    if name in ("toolgen", "toolweaver"):
        from tests.retrievers import generators

        made = generators.empty(name)
        if name == "toolgen":  # dev has no use for either
            made.options = replace(made.options, similarity=50.0, new_bonus=1.0)
        return made
    if name.endswith("-trained"):
        kind = Masstool if name == "masstool-trained" else Colt
        return kind.load(fitted(kind), HashedWords())
    if name.endswith("-learned"):  # the contract holds whatever was learned
        made = EMBEDDED[name.removesuffix("-learned")](encoder=HashedWords())
        made.learn(examples(60))
        return made
    parts = [Bm25(), Dense(encoder=HashedWords())]
    if name == "hybrid":  # a shallow depth, so that small catalogues reach below it
        return Hybrid(HybridOptions(depth=7), parts)
    if name == "hybrid-rrf":
        return Hybrid(HybridOptions(fusion="rrf", depth=7), parts)
    if name == "rewrite":  # by rules, which need no model
        return Rewrite(RewriteOptions(llm="rules", depth=7), [Hybrid(HybridOptions(depth=7), parts)])
    if name.startswith("rerank"):  # few, so that small catalogues reach below them
        options = RerankOptions(reranker=str(reranker()), first=7, weight=1.5, deadline_ms=60_000)
        return Rerank(options, [Hybrid(HybridOptions(depth=7), parts) if name == "rerank" else Bm25()])
    return method(name)()


class TestEveryRetriever(Contract):
    """Those that take any tool."""

    @pytest.fixture(params=marked(OPEN))
    def make(self, request: pytest.FixtureRequest) -> Make:
        return partial(build, request.param)

    def test_it_is_opened_by_the_name_in_its_folder(
        self, retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reopened(retriever, tmp_path, monkeypatch)
        assert type(load_model(tmp_path)) is type(retriever) is method(retriever.name)


class TestThoseOfOneCatalogue(ClosedContract):
    """Those that take the tools of their training alone."""

    @pytest.fixture(params=marked(CLOSED))
    def make(self, request: pytest.FixtureRequest) -> Make:
        return partial(build, request.param)


def test_a_retriever_is_found_by_its_file_name() -> None:
    assert {"bm25", "dense", "hybrid", "memory", "centroid"} <= set(available())
    assert method("bm25") is Bm25
    with pytest.raises(BadModel, match="bm25"):
        method("nonsense")


def test_what_cannot_rank_is_no_retriever() -> None:
    class Nothing(Retriever):
        name = "nothing"

    with pytest.raises(TypeError, match="rank"):
        Nothing()  # type: ignore[abstract]
