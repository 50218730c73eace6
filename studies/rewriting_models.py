"""What studies/rewriting.py trains and searches with: sets of data, forms of rewriting, retrievers, generators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from studies.recorded_llm import RecordedModel
from studies.running import progress
from studies.trained import SETS
from toolscout.core.arrays import Floats
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.errors import BadModel
from toolscout.evaluation.evaluate import load_splits
from toolscout.evaluation.vector_cache import cache_path, encoder_of, tool_vectors
from toolscout.llm import open_llm
from toolscout.models.encoders.onnx_encoder import RAW, Encoder
from toolscout.papers.precomputed_encoder import PrecomputedEncoder
from toolscout.retrievers import training_setup
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.model_folder import MODEL_FILE, read_model, read_options, trained_on
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.provenance import TrainedOn
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.rewrite.retriever import FINETUNED_FOLDER, RULES, Rewrite, RewriteOptions
from toolscout.retrievers.rewrite.router import Router

RETRIEVERS = ("bm25", "dense-raw", "dense-trained", "hybrid")
ALIGNED_WITH = "dense-raw"
TRAINED = "dense-trained"
SUPERVISED, TAUGHT, WRITTEN, NOBODY, ZERO = "supervised", "taught", "supervised-written", "", "zero"
HELD = 0.15
_REQUESTS_KEPT = 400_000


@dataclass(frozen=True)
class Family:
    """What is learned from, and the splits that then are asked. A generator and a dense model belong to one."""

    name: str
    data: str
    tests: tuple[str, ...]
    epochs: int = 3

    @property
    def dataset(self) -> str:
        """The dataset's name."""
        return self.data.partition(":")[0]


FAMILIES = (
    Family("toollens-unseen_tool", "toollens:unseen_tool", ("unseen_tool.test",)),
    Family("toollens-unseen_scene", "toollens:unseen_scene", ("unseen_scene.test",)),
    Family("toollens", "toollens", ("test",)),
    Family("g3-unseen_tool", "toolbench-g3:unseen_tool", ("unseen_tool.test",)),
    Family("g3-unseen_scene", "toolbench-g3:unseen_scene", ("unseen_scene.test",)),
    Family("g3", "toolbench-g3", ("test",)),
    Family("sealtools", "sealtools:dev:", ("test_in", "test_out"), 6),
    Family("ultratool", "ultratool", ("test",), 6),
    Family("toolbench", "toolbench", ("test",)),
)
_DENSE = {one.name: one.options for one in SETS} | {"sealtools": ("epochs=6", "rate=0.0002")}

# How a generator is aligned, by what differs from two rounds with the usual options. It begins with one that was taught
# all but some tools, and is aligned on requests for those; "known" begins with one that was taught all, "written" with
# one that was taught by written requests too. "new" and "written-new" are these two, aligned on written requests alone;
# "even" and "written-even", on as many written as real ones.
ALIGNED: Mapping[str, Mapping[str, Any]] = {
    "aligned": {},
    "aligned-known": {"held_out_share": 0.0},
    "aligned-written": {"held_out_share": 0.0},
    "aligned-new": {"held_out_share": 0.0},
    "aligned-even": {"held_out_share": 0.0, "align_evenly": True},
    "aligned-written-new": {"held_out_share": 0.0},
    "aligned-written-even": {"held_out_share": 0.0, "align_evenly": True},
    "aligned-ndcg": {"reward": "ndcg"},
    "aligned-recall": {"reward": "recall"},
    "aligned-rank": {"reward": "rank"},
    "aligned-margin0": {"margin": 0.0},
    "aligned-margin5": {"margin": 0.5},
    "aligned-n4": {"samples": 4},
    "aligned-n16": {"samples": 16},
    "aligned-rounds1": {"align": 1},
    "aligned-rounds3": {"align": 3},
    "aligned-noreset": {"reset": False},
    "aligned-ranked": {"loss": "ranked"},
    "aligned-noutterance": {"utterance": False},
    "qta": {"preset": "qta"},
}


@dataclass(frozen=True)
class RewritingForm:
    """A form of rewriting: who writes, with which options, over which retrievers, whether it sees what was found."""

    source: str
    options: Mapping[str, Any]
    over: tuple[str, ...] = RETRIEVERS
    looks: bool = False


_SHARES = {
    f"{source}-share{percent}": RewritingForm(source, {"share": percent / 100}, (ALIGNED_WITH,))
    for source in (SUPERVISED, "aligned")
    for percent in (25, 50)
}
TABLE: dict[str, RewritingForm] = {
    "alone": RewritingForm(NOBODY, {"share": 0.0}),
    "rules": RewritingForm(NOBODY, {"llm": RULES, "form": "decompose"}),
    "zero": RewritingForm(ZERO, {}),
    "decompose": RewritingForm(ZERO, {"form": "decompose"}),
    "iterate": RewritingForm(ZERO, {"form": "iterate"}, looks=True),
    "supervised": RewritingForm(SUPERVISED, {}),
    "decompose-supervised": RewritingForm(SUPERVISED, {"form": "decompose", "utterance": False}),
    "iterate-supervised": RewritingForm(SUPERVISED, {"form": "iterate"}, looks=True),
    "aligned": RewritingForm("aligned", {}),
    WRITTEN: RewritingForm(WRITTEN, {}),
    "aligned-written": RewritingForm("aligned-written", {}),
    "aligned-new": RewritingForm("aligned-new", {}),
    **_SHARES,
}
ABLATIONS = {name: RewritingForm(name, {}, (ALIGNED_WITH,)) for name in ALIGNED if name not in TABLE}
FORMS = TABLE | ABLATIONS


@dataclass(frozen=True)
class RewritingPlan:
    """What all jobs share. `llm` and `model`: an endpoint that writes instead of SmolLM2; `requests`: at most so many.

    `settings` are options of the generators that are trained, or of how an endpoint is asked.
    """

    models: Path
    out: Path
    families: tuple[Family, ...] = FAMILIES
    retrievers: tuple[str, ...] = RETRIEVERS
    llm: str = ""
    model: str = ""
    requests: int = 0
    settings: tuple[str, ...] = ()

    def folder(self, family: Family, source: str, seed: int) -> Path:
        """Where a trained model lies."""
        return self.models / f"{family.name}-{source}-s{seed}"

    def dense(self, family: Family, seed: int) -> Path:
        """The dense model of a family: that of studies/trained.py where it lies beside."""
        beside = self.models.parent / f"{family.name}-s{seed}"
        return beside if (beside / MODEL_FILE).is_file() else self.folder(family, TRAINED, seed)

    def requests_for_new(self, family: Family, seed: int) -> Path:
        """The requests that studies/synthetic.py had written for tools without any: they lie beside."""
        return self.models.parent / "synthetic" / f"written-{family.name}-s{seed}"

    def written(self, family: Family, source: str, seed: int) -> Path:
        """Where the texts of a model are kept."""
        return self.models / "written" / f"{family.name}-{source}{f'-s{seed}' if source != ZERO else ''}.jsonl"


class Remembering(PrecomputedEncoder):
    """Keeps the vectors of all requests it was asked for: queries of one retriever are those of the next."""

    def encode_request(self, text: str) -> Floats:
        """The unit vector of one request."""
        found: Floats = self.encode([text])[0]
        return found

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors of several requests."""
        new = [text for text in dict.fromkeys(texts) if text not in self._requests]
        if len(self._requests) + len(new) > _REQUESTS_KEPT:
            self._requests = {text: self._requests[text] for text in texts if text in self._requests}
        if new:
            self._requests.update(zip(new, self._encoder.encode(new), strict=True))
        found: Floats = np.stack([self._requests[text] for text in texts])
        return found


@lru_cache(maxsize=2)
def read(family: Family) -> Dataset:
    """The dataset with the splits that are asked, and those that tell which tools are new there."""
    return load_splits(find_dataset(family.dataset), family.tests)


@lru_cache(maxsize=1)
def raw() -> Remembering:
    """The published encoder: the default one knows ToolBench's documents, and dev requests that some tests share."""
    return Remembering(Encoder.load(Path(RAW)), {}, {})


def filled(retriever: Retriever, tools: Sequence[Tool]) -> Retriever:
    """With these tools and no others; vectors come out of the cache."""
    encoder = encoder_of(retriever)
    retriever.remove(retriever.ids())
    rows = tool_vectors(tools, encoder, cache_path()) if encoder else ()
    retriever.add(tools, {tool.digest(): row for tool, row in zip(tools, rows, strict=True)} if encoder else None)
    return retriever


def dense_raw() -> Dense:
    """Vectors of the published encoder."""
    return Dense(DenseOptions(encoder=RAW), raw())


def part(plan: RewritingPlan, family: Family, name: str, seed: int) -> tuple[Retriever, TrainedOn]:
    """A retriever with the tools of a family, and what it has seen."""
    seen = TrainedOn()
    if name == TRAINED:
        folder = plan.dense(family, seed)
        made: Retriever = load_model(folder)
        seen = trained_on(folder)
    elif name == "bm25":
        made = Bm25()
    elif name == "hybrid":
        made = Hybrid(None, [Bm25(), dense_raw()])
    elif name == "dense-raw":
        made = dense_raw()
    else:
        raise BadModel(f"there is no retriever {name!r} here; choose from {', '.join(RETRIEVERS)}")
    return filled(made, read(family).tools), seen


def options_of(plan: RewritingPlan, form: RewritingForm, folder: Path | None) -> RewriteOptions:
    """The options of a form; of a trained generator those that it was trained with too."""
    told: dict[str, Any] = {}
    if folder is not None:
        told = {**asdict(read_options(RewriteOptions, read_model(folder))), "llm": str(folder / FINETUNED_FOLDER)}
    elif form.source == ZERO and plan.llm:
        own = RewriteOptions(llm=plan.llm, model=plan.model, cache=str(plan.models / "endpoint.db"))
        told = asdict(with_settings(own, "rewrite", plan.settings))
    return RewriteOptions(**(told | dict(form.options)))


def rewriting(plan: RewritingPlan, family: Family, name: str, over: Retriever, seed: int) -> Rewrite:
    """The retriever of a form over another one. What its model writes is kept."""
    form = FORMS[name]
    folder = plan.folder(family, form.source, seed) if form.source not in (NOBODY, ZERO) else None
    made = Rewrite(options_of(plan, form, folder), [over])
    made.rewriter.add(read(family).tools)
    if folder is not None and read_model(folder).get("router"):
        made.router = Router.read(read_model(folder)["router"])
    if form.source != NOBODY and not (form.source == ZERO and plan.llm):
        made.rewriter.author.use(recorded(plan, family, form.source, seed))
    return made


@lru_cache(maxsize=1)
def recorded(plan: RewritingPlan, family: Family, source: str, seed: int) -> RecordedModel:
    """What writes, with all that it wrote before."""
    base = next((one.partition("=")[2] for one in plan.settings if one.startswith("base=")), "")
    spec = base if source == ZERO else str(plan.folder(family, source, seed) / FINETUNED_FOLDER)
    return RecordedModel(plan.written(family, source, seed), source, partial(open_llm, spec))


def begins_with(variant: str) -> str:
    """The generator that an alignment goes on from."""
    if variant.startswith("aligned-written"):
        return WRITTEN
    return SUPERVISED if variant in ("aligned-known", "aligned-new", "aligned-even") else TAUGHT


def train_generator(plan: RewritingPlan, family: Family, source: str, seed: int) -> None:
    """Teach a generator to describe gold tools; the epoch is chosen by what dense over raw vectors finds on dev."""
    own = {"align": 0, "preset": "", "held_out_share": HELD if source == TAUGHT else 0.0}
    _fit(plan, family, source, RewriteOptions(seed=seed, epochs=family.epochs), own)


def train_aligned(plan: RewritingPlan, family: Family, variant: str, seed: int) -> None:
    """Go on from such a generator by what dense over raw vectors finds."""
    begin = str(plan.folder(family, begins_with(variant), seed) / FINETUNED_FOLDER)
    usual = RewriteOptions(seed=seed, align=2, pairs=4, held_out_share=HELD)
    _fit(plan, family, variant, usual, {**ALIGNED[variant], "init_from": begin, "epochs": 0})


def _fit(plan: RewritingPlan, family: Family, source: str, usual: RewriteOptions, own: Mapping[str, Any]) -> None:
    """What the plan sets goes before what is usual, what makes the variant before that."""
    options = replace(with_settings(usual, "rewrite", plan.settings), **own)
    data = [family.data]
    if source.endswith(("written", "new", "even")):
        more = plan.requests_for_new(family, usual.seed)
        if not more.is_dir():
            raise BadModel(f"{more} is not there; run: python -m studies.synthetic texts --only {family.name}")
        data.append(str(more))
        options = replace(options, align_on=more.name if source.endswith("new") else "")
    sets = training_setup.training_sets(data)
    Rewrite(options, [dense_raw()]).fit(sets, plan.folder(family, source, usual.seed), progress())


def train_dense(plan: RewritingPlan, family: Family, seed: int) -> None:
    """Train a dense model as studies/trained.py does."""
    made = training_setup.made("dense", [], [*_DENSE[family.name], f"seed={seed}"])
    made.fit(training_setup.training_sets([family.data]), plan.folder(family, TRAINED, seed), progress())


def complete(folder: Path) -> bool:
    """Whether a model is there."""
    return (folder / MODEL_FILE).is_file()


def chosen(families: Iterable[Family], names: Sequence[str]) -> tuple[Family, ...]:
    """Those whose name one of the patterns fits."""
    return tuple(one for one in families if any(fnmatch(one.name, name) for name in names))
