"""Trains a tower: joins datasets, trains, and chooses the weights in the score on dev."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolscout.core.answer import Example
from toolscout.core.arrays import Bools, Floats, Ints
from toolscout.data.beir_files import Qrels
from toolscout.data.dataset import Dataset, pooled, request_digest
from toolscout.data.no_tool_prompts import DEV, TRAIN, Prompt, read_negatives
from toolscout.errors import BadModel, MissingExtra
from toolscout.index.feedback_pool import MAX_REQUEST_CHARS
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.need_head import NeedHead
from toolscout.models.tower import Tower, unit
from toolscout.retrievers.base import FitProgress, FitReport
from toolscout.retrievers.document_index import ENCODER_FOLDER, WEIGHTS_FOLDER
from toolscout.retrievers.encoded_requests import Encoding, train_examples
from toolscout.retrievers.provenance import TrainedOn, TrainingSet, seen_with
from toolscout.retrievers.tower.dev_weights import ChosenWeights, DevScores, choose, chosen, held_out_bonus
from toolscout.retrievers.tower.retriever import TowerRetriever
from toolscout.training.encoder_options import GraphOptions, NeighbourOptions

if TYPE_CHECKING:
    from toolscout.training.tower import TowerOptions, TrainingRequests

# Below this many training requests per used tool, the graph hardly helps.
_SPARSE = 3.0
_BATCHES = 4
# The used tools are held out in so many parts, one after the other, to choose the bonus of added tools.
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class TowerTrainingData:
    """Several training sets joined into one. Tools with equal documents share a row."""

    dataset: Dataset
    dev: str
    rows: dict[str, int]
    gold: list[Ints]
    dev_gold: list[Ints]
    scenes: Ints
    dev_scenes: Ints

    @property
    def requests(self) -> list[str]:
        """The texts to train on."""
        return [text for _, text in self.dataset.split(TRAIN).requests]

    @property
    def dev_requests(self) -> list[str]:
        """The texts to select on."""
        return [text for _, text in self.dataset.split(self.dev).requests] if self.dev else []


def material(data: Sequence[TrainingSet]) -> TowerTrainingData:
    """Join training sets. Raises BadModel if there are none."""
    if not data:
        raise BadModel("name at least one dataset to train on")
    dataset = pooled([(one.dataset, one.train, one.dev) for one in data])
    qrels = dataset.qrels
    by_digest: dict[str, int] = {}
    rows = {tool.id: by_digest.setdefault(tool.digest(), len(by_digest)) for tool in dataset.tools}
    train, dev = (_golds(qrels.get(role, {}), rows) for role in (TRAIN, DEV))
    # Scenes are numbered here: the published numbering gives the same tools several scenes.
    return TowerTrainingData(dataset, DEV if DEV in qrels else "", rows, train, dev, _scenes(train), _scenes(dev))


def _scenes(golds: Sequence[Ints]) -> Ints:
    """Numbers for the scenes of requests: a scene is a distinct set of gold tools."""
    numbers: dict[tuple[int, ...], int] = {}
    return np.array([numbers.setdefault(tuple(gold.tolist()), len(numbers)) for gold in golds], dtype=np.int64)


def _golds(qrels: Qrels, rows: Mapping[str, int]) -> list[Ints]:
    return [np.unique(np.array([rows[i] for i in gold], dtype=np.int64)) for gold in qrels.values()]


def overlap(data: TowerTrainingData, options: GraphOptions) -> tuple[str, ...]:
    """A note on the size of the graph, and a warning if it is too sparse to help."""
    degrees = np.bincount(np.concatenate(data.gold), minlength=max(data.rows.values()) + 1)
    used = degrees[degrees > 0]
    requests, scenes = len(data.gold), int(data.scenes.max()) + 1
    lines = [
        f"graph: {requests:,} requests, {int(degrees.sum()):,} edges to {len(used):,} of {len(degrees):,} tools "
        f"(median {int(np.median(used)):,} requests a tool), {scenes:,} scenes ({requests / scenes:.1f} requests each)"
    ]
    if options.layers and (used.mean() < _SPARSE or requests / scenes < 1.5):
        lines.append(
            f"the graph is sparse ({used.mean():.1f} requests a tool, {requests / scenes:.1f} a scene): it will hardly "
            "help; compare with --option layers=0"
        )
    return tuple(lines)


def fit(
    retriever: TowerRetriever,
    around: NeighbourOptions,
    no_tool: str,
    data: Sequence[TrainingSet],
    folder: Path,
    progress: FitProgress | None,
) -> FitReport:
    """Train the towers, propagate over the graph, choose weights on dev, and save a complete model in the folder.

    `around`: the options of neighbours. `no_tool`: a folder of prompts that need no tool, "" for none.
    """
    try:
        from toolscout.training import tower as training
    except ImportError as error:
        raise MissingExtra("training", "train") from error

    started = time.perf_counter()
    options = retriever.options
    joined = material(data)
    if len(joined.gold) > options.keep and around.neighbours:
        raise BadModel(f"there are {len(joined.gold):,} requests to keep; set keep to that many or more")
    prompts = read_negatives(no_tool) if around.detection else []
    no_tool = Path(no_tool).resolve().name if prompts else ""  # the model keeps a name, not a path of this machine
    known = training.TrainingRequests(joined.gold, joined.scenes, max(joined.rows.values()) + 1)
    # The edges of a batch are left out of the graph, so a batch must be a small part of the requests.
    few = min(options.batch, max(1, len(joined.gold) // _BATCHES))
    neighbours = around if prompts else replace(around, detection=0.0)
    parts = training.TowerOptions(replace(options, batch=few), options, neighbours)
    seen = seen_with(data, prompts, no_tool)
    identity = _identity(options, seen, "" if options.train_encoder else retriever.encoder.fingerprint)
    learned_prompts = [prompt for prompt in prompts if prompt.split == TRAIN]
    if options.train_encoder:
        seen |= TrainedOn.load(Path(options.start)) if options.start else TrainedOn()
        learned = _train_with_encoder(retriever, joined, known, learned_prompts, parts, folder, identity, progress)
        for home in (folder / WEIGHTS_FOLDER, folder / ENCODER_FOLDER):  # each may be used without the rest
            seen.save(home)
    encoding = Encoding(retriever.encoder, folder, progress)
    vectors = _encoded(encoding, joined, learned_prompts)
    if not options.train_encoder:
        from toolscout.training.tower_task import learn_frozen

        fresh = not _encoder_saw_requests(retriever, joined)
        learned = learn_frozen(known, joined.dev_gold, vectors, parts, folder, identity, progress, fresh)
    if progress:
        progress("choosing on dev", 0, 0)
    retriever.remove(retriever.ids())
    retriever._tower, retriever.trained_on = learned.tower, seen
    retriever._catalogue = frozenset(tool.id for one in data for tool in one.dataset.tools)
    retriever._head = _calibrated(learned.tower, joined, vectors, prompts, encoding, retriever._fingerprint())
    choice = _choose_weights(retriever, joined, known, vectors, parts, data)
    found = {**asdict(choice.weights), "no_tool": no_tool}
    found |= {"average": learned.average} if options.train_encoder else {}
    names = {field.name for field in fields(options)}
    retriever.options = replace(options, **{name: value for name, value in found.items() if name in names})
    numbers = learned.parameters
    notes = overlap(joined, options)
    report = FitReport(time.perf_counter() - started, str(learned.device.type), numbers, choice.dev, notes)
    retriever.fit_record = {**asdict(report), "history": learned.trained.history, "trained_s": learned.trained.seconds}
    encoding.tools(retriever, data)
    retriever.save(folder)
    learned.checkpoints.remove()
    encoding.done()
    return report


def _encoder_saw_requests(retriever: TowerRetriever, joined: TowerTrainingData) -> bool:
    """Whether the encoder was trained on some of these requests.

    Such an encoder has moved these requests closer to their tools than it will move new requests, so what a tower
    learns from their vectors would not hold for new ones.
    """
    folder = retriever.encoder.folder
    seen = TrainedOn.load(folder) if isinstance(folder, Path) else TrainedOn()
    known = frozenset[str]().union(*(split.requests for split in seen.splits if split.role == "train"))
    return any(request_digest(text) in known for text in joined.requests)


def _identity(options: Any, seen: TrainedOn, encoder: str) -> str:
    found = hashlib.blake2b(json.dumps(asdict(options), sort_keys=True).encode(), digest_size=16)
    splits = "".join(f"{split.digest}{split.split}{split.role}" for split in seen.splits)
    found.update((splits + encoder).encode())
    return found.hexdigest()


def _train_with_encoder(
    retriever: TowerRetriever,
    joined: TowerTrainingData,
    known: TrainingRequests,
    prompts: Sequence[Prompt],
    parts: TowerOptions,
    folder: Path,
    identity: str,
    progress: FitProgress | None,
) -> Any:
    """Train the towers and the encoder together, export the encoder, and use it from now on."""
    from toolscout.models.encoders.export import export
    from toolscout.training.tower_task import learn_with_encoder

    options = retriever.options
    start = Path(options.start) if options.start else None
    texts = [prompt.text for prompt in prompts]
    learned = learn_with_encoder(
        joined.dataset, (TRAIN, joined.dev), known, texts, start, parts, folder, identity, progress
    )
    export(folder / WEIGHTS_FOLDER, folder / ENCODER_FOLDER)
    retriever.remove(retriever.ids())
    retriever._own_encoder = folder / ENCODER_FOLDER
    retriever.share(Encoder.load(folder / ENCODER_FOLDER))
    return learned


def _encoded(encoding: Encoding, joined: TowerTrainingData, prompts: Sequence[Prompt]) -> Any:
    from toolscout.training.tower_task import Vectors

    texts = [*joined.requests, *joined.dev_requests, *(prompt.text for prompt in prompts)]
    by_text = encoding.requests([Example(text) for text in texts])
    documents = encoding.documents(joined.dataset.tools)
    width = len(next(iter(documents.values())))

    def rows(some: Sequence[str]) -> Floats:
        return np.array([by_text[text] for text in some], dtype=np.float32).reshape(len(some), width)

    # In the order of rows: tools with equal documents share one.
    tools = np.array(list(documents.values()), dtype=np.float32)
    return Vectors(rows(joined.requests), tools, rows([prompt.text for prompt in prompts]), rows(joined.dev_requests))


def _calibrated(
    tower: Tower, joined: TowerTrainingData, vectors: Any, prompts: Sequence[Prompt], encoding: Encoding, encoder: str
) -> NeedHead | None:
    """The detection tower as a head of its own, its probabilities fitted to dev if dev has both kinds."""
    if not len(vectors.prompts):
        return None
    from toolscout.training.need_head import Examples, calibrate

    hidden, bias, output = (tower.numbers[name] for name in ("hidden", "hidden_bias", "output"))
    head = NeedHead(hidden, bias, output, float(tower.numbers["output_bias"]), 1.0, 0.0, encoder)
    others = [prompt for prompt in prompts if prompt.split == DEV]
    if not joined.dev or not others:
        return head
    by_text = encoding.requests([Example(prompt.text) for prompt in others])
    sources: dict[str, list[Floats]] = {}
    for prompt in others:
        sources.setdefault(prompt.source, []).append(by_text[prompt.text])
    dev = Examples({joined.dataset.name: vectors.dev}, {name: np.array(rows) for name, rows in sources.items()})
    return calibrate(head, dev)[0]


def _choose_weights(
    retriever: TowerRetriever,
    joined: TowerTrainingData,
    known: TrainingRequests,
    vectors: Any,
    parts: TowerOptions,
    data: Sequence[TrainingSet],
) -> ChosenWeights:
    """Choose weights on dev; the retriever keeps the graph terms of tools and the views of all past requests."""
    tower = retriever._tower
    assert tower is not None
    tools, examples = tower.tool(vectors.tools), train_examples(data)
    used = known.used

    def dev_scores(held_out: Ints) -> DevScores:
        """The dev scores as if these tools had come after training: no request that used one is known."""
        kept = np.array([not np.isin(gold, held_out).any() for gold in known.gold])
        terms = _remember(retriever, joined, known, vectors, parts, examples, kept)
        new, added = np.ones(known.tools, dtype=bool), np.zeros(known.tools, dtype=bool)
        new[used], added[held_out] = False, True
        dev, gold, scenes = vectors.dev, joined.dev_gold, joined.dev_scenes
        return DevScores.of(retriever, dev, gold, joined.rows, vectors.tools, tools, terms, new, added, scenes)

    nothing_held_out = dev_scores(used[:0])
    choice = choose(nothing_held_out, tower, layers=parts.graph.layers > 0, around=parts.around.neighbours > 0)
    if not len(vectors.dev):
        return choice
    folds = np.array_split(np.random.default_rng(0).permutation(used), _FOLDS)
    bonus = held_out_bonus(map(dev_scores, folds), choice.weights)
    _remember(retriever, joined, known, vectors, parts, examples, np.ones(len(known.gold), dtype=bool))
    return chosen(nothing_held_out, replace(choice.weights, added_bonus=bonus))


def _remember(
    retriever: TowerRetriever,
    joined: TowerTrainingData,
    known: TrainingRequests,
    vectors: Any,
    parts: TowerOptions,
    examples: Sequence[Example],
    kept: Bools,
) -> Floats:
    """Give the retriever the training requests that are kept: graph terms of tools, the pool, and its views.

    Returns the terms of all tools.
    """
    from toolscout.training.tower import TrainingRequests, whole

    tower = retriever._tower
    assert tower is not None
    tools = tower.tool(vectors.tools)
    retriever._terms, retriever._pools, retriever._views = {}, retriever._empty_pools(), {}
    if not kept.any():
        return np.zeros_like(tools)
    gold = [gold for gold, keep in zip(known.gold, kept, strict=True) if keep]
    requests = tower.request(vectors.requests[kept])
    some = TrainingRequests(gold, np.unique(known.scenes[kept], return_inverse=True)[1], known.tools)
    by_tools, by_scenes, terms = whole(some, parts, requests, tools)
    terms = terms.astype(np.float16).astype(np.float32)  # as they are saved
    views = np.stack([unit(requests + found) for found in (by_tools, by_scenes)], axis=1)
    touched = np.flatnonzero(np.abs(terms).sum(1))
    by_row = {row: terms[row] for row in touched.tolist()}
    retriever._terms = {tool_id: by_row[row] for tool_id, row in joined.rows.items() if row in by_row}
    if parts.around.neighbours:
        few = [example for example, keep in zip(examples, kept, strict=True) if keep]
        retriever._pools.add(few, vectors.requests[kept].astype(np.float16).astype(np.float32))
        keys = [(f"source {one.source}", request_digest(one.request[:MAX_REQUEST_CHARS])) for one in few]
        retriever._views = {key: view.astype(np.float16) for key, view in zip(keys, views, strict=True)}
    return terms
