"""masstool_published: MassTool as its authors released it, for comparison; it ranks only tools it was trained on.

A request has six vectors: in each of two views (the request–tool graph and the request–scene graph) its own, the
attention-weighted mean of its nearest past requests, and that mean times a gate. A tool's score is the mean of their
cosines with the tool's trained vector. Options leave modules out, for ablations: without SUIM there is no mean of past
requests, and the gate acts on the request's own vector; without AdaKT there is no gated vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from toolscout.core.answer import Example
from toolscout.core.arrays import Bools, Floats, Ints
from toolscout.core.model_files import UNREADABLE, read_arrays
from toolscout.core.tool import Searchable
from toolscout.data.no_tool_prompts import Prompt, read_prompts
from toolscout.errors import BadModel, MissingExtra, NeedsTraining
from toolscout.index.vector_table import VectorTable
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import FitProgress, FitReport, Vectors
from toolscout.retrievers.document_index import DocumentIndex, EncoderOptions
from toolscout.retrievers.encoded_requests import Encoding
from toolscout.retrievers.model_folder import read_model, read_options, write_model
from toolscout.retrievers.provenance import TrainedOn, TrainingSet, seen_with
from toolscout.training.encoder_options import PublishedOptions, PublishedTransfer

if TYPE_CHECKING:
    from toolscout.papers.masstool.published_training import PublishedTrainingData

COMMAND = "toolscout train DATA --retriever masstool_published --out FOLDER"
_TOWER, _TOOLS, _POOL = "tower.npz", "tools.json", "pool"
_VIEWS = 2
KEPT_FAULTS = (
    "A training request sees its own gold tools in the graph; only the dropped edges hide some of them.",
    "Every request and every tool has a free vector, so only tools of the training catalogue can be ranked.",
    "Detection is trained by cross-entropy on the output of a softmax; the paper has a sigmoid and binary "
    "cross-entropy.",
    "A layer (linear, ReLU) stands between the detection tower's state and the gate; the paper's gate reads the state.",
    "A score is the sum of six cosines; the paper has one product of unit vectors.",
    "Requests of one scene in a batch count as different scenes in the contrastive loss.",
    "Attention matrices start as standard normal numbers, and products are not divided by the root of the width.",
)
"""What the released code of MassTool does against its paper or against good practice, and this network does too."""
DIFFERENCES = (
    "The epoch is selected on the dev split by Recall@3; the released code selects on the test requests.",
    "Past requests to attend to are training requests only; the released pool may have test requests, without labels.",
    "The encoder is the one that comes with this package, or one that is named; its vectors have length one.",
    "Prompts that need no tool come from a folder that is named, not from ToolDet.",
    "The learning rate falls linearly to 0, and gradients are clipped at norm 1; the released code does neither.",
    "The transfer function attention attends to the pair of attended vector and detection vector; the released code "
    "builds this pair, then attends to the attended vector alone.",
    "Without SUIM the transfer function changes the request's own vector, and without AdaKT there is no transferred "
    "vector; the released code has no classes for these ablations.",
    "Detection is measured on test requests and held-out prompts; the released code counts training requests too.",
    "Trained vectors of tools and past requests are saved in half precision.",
)
"""What differs on purpose from the released code of MassTool."""


@dataclass(frozen=True, slots=True)
class MasstoolPublishedOptions(PublishedOptions, EncoderOptions):
    """Options of masstool_published.

    no_tool: a folder of prompts that need no tool, to train detection on; "" trains without it. A trained model has
    only the folder's name.
    """

    no_tool: str = ""


@dataclass(frozen=True, slots=True)
class PublishedTower:
    """The trained model in numpy: `weights` has the past requests in both views and the layers, by name.

    `transfer`: the transfer function of AdaKT, "none" without AdaKT. `attends`: whether past requests are used (SUIM).
    """

    weights: Mapping[str, Floats]
    transfer: PublishedTransfer = "gating"
    attends: bool = True

    def joint(self, vector: Floats, near: Ints, mask: Bools) -> Floats:
        """Return the vector to search with: the mean of the request's unit vectors, six with SUIM and AdaKT.

        `near`: the rows of its neighbours; `mask`: which of them are near enough.
        """
        info = None if self.transfer == "none" else self._layer("info", self._state(vector))
        parts = []
        for view in range(_VIEWS):
            found = vector
            parts.append(found)
            if self.attends:
                found = self._attended(view, vector, near[mask])
                parts.append(found)
            if info is not None:
                parts.append(self._transferred(view, found, info))
        mean: Floats = np.mean([_unit(part) for part in parts], axis=0, dtype=np.float32)
        return mean

    def _attended(self, view: int, vector: Floats, near: Ints) -> Floats:
        """Return the attention-weighted mean of these past requests, 0 where there are none."""
        pool = self.weights[f"pool.{view}"][near].astype(np.float32)
        logits = pool @ (vector @ self.weights[f"attention.{view}"])
        shares = np.exp(logits - logits.max(initial=-np.inf))
        # The largest share is 1, so the sum is below 1 only without neighbours.
        attended: Floats = (shares / max(float(shares.sum()), 1.0)) @ pool
        return attended

    def _transferred(self, view: int, found: Floats, info: Floats) -> Floats:
        """Return AdaKT's vector: `found`, changed by what the detection tower knows."""
        if self.transfer == "addition":
            return found + info
        if self.transfer == "concatenation":
            return self._linear(f"joins.{view}", np.concatenate([found, info]))
        if self.transfer == "attention":
            pair = np.stack([found, info])
            logits = pair @ self.weights[f"mixes.{view}"] @ pair.T
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            mixed: Floats = (shares / shares.sum(axis=1, keepdims=True) @ pair).sum(axis=0)
            return mixed
        gate = 1 / (1 + np.exp(-self._linear(f"gates.{view}", info)))
        return (gate * found).astype(np.float32)

    def need(self, vectors: Floats) -> Floats:
        """Return the probability that each request needs a tool: the second class of detection."""
        logits = self._linear("classes", self._state(vectors))
        probabilities: Floats = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
        return probabilities

    def _state(self, vectors: Floats) -> Floats:
        return self._layer("hidden", vectors)

    def _layer(self, name: str, vectors: Floats) -> Floats:
        return np.maximum(self._linear(name, vectors), np.float32(0))

    def _linear(self, name: str, vectors: Floats) -> Floats:
        outputs: Floats = vectors @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return outputs


def _unit(vector: Floats) -> Floats:
    return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))


class MasstoolPublished(DocumentIndex):
    """An index of trained tool vectors; only tools with an id and document of the training catalogue can be added."""

    name: ClassVar[str] = "masstool_published"
    trainable: ClassVar[bool] = True
    options: MasstoolPublishedOptions

    def __init__(self, options: MasstoolPublishedOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start untrained: no tool can be added."""
        super().__init__(options or MasstoolPublishedOptions(), encoder)
        self._tower: PublishedTower | None = None
        self._pool = VectorTable()
        self._known: dict[str, tuple[str, Floats]] = {}

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Add tools of the training catalogue; `vectors` of their documents are not used. Raises NeedsTraining."""
        digests = {tool.id: tool.digest() for tool in tools}
        unknown = [i for i, digest in digests.items() if i not in self._known or self._known[i][0] != digest]
        if unknown:
            raise NeedsTraining(unknown, COMMAND)
        super().add(tools, {digest: self._known[tool_id][1] for tool_id, digest in digests.items()})

    def _tool_vector(self, tool: Searchable, document: Floats) -> Floats:
        return self._known[tool.id][1]

    def _predicts_need(self) -> bool:
        return self._tower is not None and bool(self.options.no_tool) and self.options.weight_detection > 0

    def _need(self, vectors: Floats) -> list[float]:
        assert self._tower is not None
        return [float(probability) for probability in self._tower.need(vectors)]

    def _request_vector(self, vector: Floats) -> Floats:
        """Return the vector to search with: its dot product with a tool's vector is the mean of the cosines."""
        if vector.ndim > 1:
            return np.stack([self._request_vector(one) for one in vector])
        assert self._tower is not None  # an untrained index has no tools to search
        if not self.options.neighbours:
            return self._tower.joint(vector, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))
        rows, cosines = self._pool.search(vector, self.options.neighbours)
        best = np.lexsort((rows, -cosines))[: self.options.neighbours]
        return self._tower.joint(vector, rows[best], cosines[best] >= self.options.epsilon)

    def _search_vector(self, vector: Floats, evidence: Any) -> Floats:
        return self._request_vector(vector)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train on the train split, select on the dev split, and save to `folder`; the encoder is not trained.

        Raises MissingExtra without torch, and BadModel for more than one dataset or fewer than two requests.
        """
        try:
            from toolscout.papers.masstool.published_training import learn
        except ImportError as error:
            raise MissingExtra("training", "train") from error
        if len(data) != 1:
            raise BadModel("masstool_published is trained on one dataset, as it was published; name one")
        prompts = read_prompts(self.options.no_tool, "train") if self.options.no_tool else []
        options = replace(self.options, no_tool=Path(self.options.no_tool).resolve().name if prompts else "")
        seen = seen_with(data, prompts, options.no_tool)
        encoding = Encoding(self.encoder, folder, progress)
        training_data = _training_data(data[0], prompts, encoding, options.train_share)
        identity = hashlib.blake2b(json.dumps(asdict(options), sort_keys=True).encode(), digest_size=16)
        identity.update("".join([self._fingerprint(), *(f"{one.digest}{one.role}" for one in seen.splits)]).encode())
        learned = learn(training_data, options, folder, identity.hexdigest(), progress)
        report = FitReport(learned.trained.seconds, learned.device, learned.parameters, learned.trained.best)
        self.remove(self.ids())
        self.options, self.trained_on = options, seen
        self.fit_record = asdict(report) | {"history": learned.trained.history}
        digests = {tool.id: tool.digest() for tool in data[0].dataset.tools}
        self._set_trained(learned.weights, digests, training_data.requests)
        self.add(data[0].dataset.tools)
        self.save(folder)
        encoding.done()
        learned.checkpoints.remove()
        return report

    def _set_trained(self, weights: Mapping[str, Floats], digests: Mapping[str, str], pool: Floats) -> None:
        """Use these trained weights; large tables are rounded to half precision, as they are saved."""
        rounded = {name: array.astype(_precision(name)) for name, array in weights.items()}
        tools = rounded.pop("tools").astype(np.float32)
        self._known = {i: (digest, row) for (i, digest), row in zip(digests.items(), tools, strict=True)}
        self._tower = PublishedTower(rounded, self.options.transfer, self.options.neighbours > 0)
        self._pool = VectorTable()
        self._pool.append(pool)

    def save(self, folder: Path) -> None:
        """Write the weights, the tools and the record of the training data."""
        with self._lock:
            self._save_documents(folder)
            if self._tower is not None:
                self.trained_on.save(folder)
                self._pool.save(folder / _POOL)
                tools = np.stack([row for _, row in self._known.values()]).astype(_precision("tools"))
                np.savez(folder / _TOWER, allow_pickle=False, tools=tools, **self._tower.weights)
                (folder / _TOOLS).write_text(json.dumps({i: digest for i, (digest, _) in self._known.items()}))
            write_model(folder, self, encoder=self._fingerprint())

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Load a saved model; `encoder` must be the one it was trained with. Raises BadModel."""
        model = read_model(folder)
        loaded = cls(read_options(MasstoolPublishedOptions, model), encoder)
        loaded._load_documents(folder, model)
        loaded.trained_on, loaded.fit_record = TrainedOn.load(folder), model.get("fit")
        if (folder / _TOWER).is_file():
            pool = VectorTable.load(folder / _POOL)
            try:
                digests = json.loads((folder / _TOOLS).read_text())
                loaded._set_trained(read_arrays(folder / _TOWER), digests, pool.rows(np.arange(len(pool))))
            except UNREADABLE as error:
                raise BadModel(f"{folder / _TOWER} cannot be read ({error}); train the model again") from None
        return loaded


def _precision(name: str) -> type[np.floating[Any]]:
    return np.float16 if name == "tools" or name.startswith("pool.") else np.float32


def _training_data(
    one: TrainingSet, prompts: Sequence[Prompt], encoding: Encoding, share: float
) -> PublishedTrainingData:
    """Return the vectors of requests, prompts and tools, and the gold tools and scenes of the requests.

    `share`: the share of the training requests to take, at least two.
    """
    from toolscout.papers.masstool.published_training import PublishedTrainingData

    dataset = one.dataset
    row_of = {tool.id: row for row, tool in enumerate(dataset.tools)}
    train, dev = dataset.split(one.train), dataset.split(one.dev) if one.dev else None
    if len(train) < 2:
        raise BadModel(f"{dataset.name} {one.train} has one request; at least two are needed, as neighbours")
    # A fixed order, so that a larger share includes the requests of a smaller one and seeds share their requests.
    order = np.random.default_rng(0).permutation(len(train))
    taken = np.sort(order[: max(2, round(share * len(train)))]).tolist()
    scenes: dict[str, int] = {}
    documents = encoding.documents(dataset.tools)
    tools = np.stack([documents[tool.digest()] for tool in dataset.tools])

    def encode(texts: Sequence[str]) -> Floats:
        vectors = encoding.requests([Example(text) for text in texts])
        return np.array([vectors[text] for text in texts], dtype=np.float32).reshape(len(texts), tools.shape[1])

    return PublishedTrainingData(
        requests=encode([train.requests[at][1] for at in taken]),
        gold=_places([train.gold[at] for at in taken], row_of),
        scenes=np.array([scenes.setdefault(dataset.scene(train.requests[at][0]), len(scenes)) for at in taken]),
        tools=tools,
        negatives=encode([prompt.text for prompt in prompts]),
        dev=encode([text for _, text in dev.requests] if dev else []),
        dev_gold=_places(dev.gold, row_of) if dev else [],
    )


def _places(golds: Sequence[Sequence[str]], row_of: Mapping[str, int]) -> list[Ints]:
    return [np.array(sorted({row_of[tool_id] for tool_id in gold}), dtype=np.int64) for gold in golds]
