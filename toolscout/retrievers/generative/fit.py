"""Trains the language model of a generative retriever: makes examples of datasets, trains, and chooses on dev."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Floats
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.data import metrics
from toolscout.data.conversations import Conversation
from toolscout.data.no_tool_prompts import DEV, TRAIN, Prompt, read_negatives
from toolscout.errors import BadDataset, BadModel, MissingExtra
from toolscout.models.language.lora import ADAPTER_FILE
from toolscout.retrievers.base import FitProgress, FitReport
from toolscout.retrievers.encoded_requests import Encoding
from toolscout.retrievers.generative.base import IdPlan, Path_
from toolscout.retrievers.generative.conversation_examples import (
    called_tools,
    choose_carry_on,
    conversation_examples,
    provenance_of,
    read_conversations,
)
from toolscout.retrievers.model_folder import read_model
from toolscout.retrievers.provenance import TrainedOn, TrainingSet, seen_with

if TYPE_CHECKING:
    from toolscout.models.language.torch_network import TransformerNetwork
    from toolscout.retrievers.generative.base import GenerativeRetriever
    from toolscout.training.id_generation import (
        AddedRows,
        IdExample,
        IdTrainingSettings,
        LearnedState,
        Stage,
        TrainedIdWriter,
    )

# Most requests of a dev split that are ranked after each epoch; the choices at the end use all of them.
_DEV_REQUESTS = 500
_DEV_K = 5
# Where ids are kept that took long to make, until the model is complete.
_IDS_FOLDER = "learned-ids"
# What is measured on dev; the first selects the epoch.
_MEASURES = ("recall@5", "recall@3", "comp@3", "comp@5", "new_recall@5", "known_recall@5")
_CALIBRATION_REQUESTS = 500
_OPPOSITE = (
    "on dev it says the opposite of which requests need a tool, so it forecasts no need; give it more prompts that "
    "need none, or others"
)


@dataclass(frozen=True, slots=True)
class IdTrainingData:
    """What training learns from: tools by id, requests with their gold tools, prompts that need no tool, conversations.

    `tools` are those of the datasets, `called` those that the conversations call. `vectors` has a vector for each.
    """

    tools: Mapping[str, Tool]
    called: Mapping[str, Tool]
    vectors: Mapping[str, Floats]
    requests: Sequence[str]
    gold: Sequence[tuple[str, ...]]
    prompts: Sequence[Prompt]
    talks: Sequence[Conversation]


def fit(
    retriever: GenerativeRetriever, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None
) -> FitReport:
    """Train in all stages, choose weights and calibrate on dev, and save a complete model in the folder.

    Raises BadModel or BadDataset for options or data that cannot be trained on, MissingExtra without torch.
    """
    try:
        from toolscout.models.language.torch_network import TransformerNetwork
        from toolscout.training import id_generation as training
        from toolscout.training.loop import pick_device
    except ImportError as error:
        raise MissingExtra("training", "train") from error

    started = time.perf_counter()
    options, base = retriever.options, retriever.base()
    encoding = Encoding(retriever.encoder, folder, progress)
    examples = _training_data(data, options, encoding)
    no_tool = Path(options.no_tool).resolve().name if examples.prompts else ""
    seen = seen_with(data, examples.prompts, no_tool) | provenance_of(examples.talks, Path(options.trajectories).name)
    seen |= TrainedOn(tools=frozenset(tool.digest() for tool in examples.called.values()))
    seen |= TrainedOn.load(Path(options.init_from)) if options.init_from else TrainedOn()
    # The model keeps names, not paths of this machine.
    names = {name: Path(getattr(options, name)).name for name in ("trajectories", "init_from")}
    retriever.options = replace(options, no_tool=no_tool, **names)
    retriever.needed = frozenset(tool_id for few in examples.gold for tool_id in few)
    uses = [*examples.gold, *((tool_id,) for tool_id in examples.called)]
    plan = retriever.plan(examples.vectors, uses, folder / _IDS_FOLDER, progress)
    models = f"{retriever._fingerprint()}{base.fingerprint}{_init_digest(options.init_from)}"
    identity = _identity(options, seen, plan, models)
    made = IdExamples(retriever, plan, examples, data)
    network = TransformerNetwork(base.architecture, base.weights(), options.rank, pick_device(options.device))
    added = training.AddedRows(plan.start, plan.vectors, options.absent)
    if options.init_from:
        added = _continue_from(retriever, options.init_from, network, added)
    settings = _settings(options, made)
    _insert_training_tools(retriever, examples)
    judge = _judge(retriever, plan, data) if any(one.dev for one in data) else None
    stages, after = made.stages(options), _stage_callback(retriever, plan)
    learned = training.learn(network, added, stages, settings, judge, folder, identity, progress, after)
    if progress:
        progress("choosing on dev", 0, 0)
    retriever.apply_state(plan, learned.state)
    _serve_with(retriever, network)
    retriever.choose(data)
    weights = {name: getattr(retriever.options, name) or 0.0 for name in ("similarity", "new_bonus")}
    retriever.options = replace(retriever.options, **weights, carry_on=choose_carry_on(retriever, data))
    retriever._platt = _calibrated(retriever, data, examples.prompts) if no_tool else (1.0, 0.0)
    dev, notes = _dev_scores(retriever, data, None), _notes(retriever, options)
    report = FitReport(time.perf_counter() - started, learned.device, learned.parameters, dev, notes)
    retriever.trained_on, retriever.fit_record = seen, {**asdict(report), "stages": _stage_records(learned)}
    retriever.save(folder)
    for checkpoints in learned.checkpoints:
        checkpoints.remove()
    encoding.done()
    shutil.rmtree(folder / _IDS_FOLDER, ignore_errors=True)
    return report


def _settings(options: Any, examples: IdExamples) -> IdTrainingSettings:
    from toolscout.training.id_generation import IdTrainingSettings

    return IdTrainingSettings(
        batch=options.batch,
        pace=options.pace,
        patience=options.patience,
        seed=options.seed,
        chunk=options.chunk,
        general=examples.general() if options.instruct_mix else (),
        mix=options.instruct_mix,
        warmup=options.warmup,
        falls=options.decay,
    )


def _stage_records(learned: TrainedIdWriter) -> dict[str, Any]:
    """Seconds, tokens per second and history of each training stage, as model.json keeps them."""
    return {
        name: {"seconds": one.seconds, "tokens_per_s": round(learned.paces[name], 1), "history": one.history}
        for name, one in learned.stages.items()
    }


def _notes(retriever: GenerativeRetriever, given: Any) -> tuple[str, ...]:
    """Notes for the user about the result of training. `given`: the options as the user set them."""
    found = [] if retriever._platt else [_OPPOSITE]
    if (read := retriever.prompter().limit) < given.request_tokens:
        found.append(
            f"requests are cut after {read:,} tokens, not after {given.request_tokens:,} (request_tokens): no more fit "
            f"into the {retriever.base().architecture.context:,} that the language model reads"
        )
    return tuple(found)


def _init_digest(folder: str) -> str:
    """A digest of the model that training starts from; the same folder may hold another model later. "" without one."""
    path = Path(folder) / ADAPTER_FILE
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if folder and path.is_file() else ""


def _continue_from(
    retriever: GenerativeRetriever, folder: str, network: TransformerNetwork, added: AddedRows
) -> AddedRows:
    """Start from an earlier model: copy its adapters into the network, and its map into the rows where it has one.

    Raises BadModel if the model is of another method, untrained, or was trained from another base or encoder.
    """
    made_by = read_model(Path(folder))["method"]
    if made_by != retriever.name:
        raise BadModel(f"{folder} is a {made_by}; begin with a {retriever.name}")
    earlier = type(retriever).load(Path(folder))
    if earlier._adapter is None or earlier.base().fingerprint != retriever.base().fingerprint:
        raise BadModel(f"{folder} cannot be begun with: it is untrained, or was trained from another language model")
    network.begin(earlier._adapter.learned)
    found = retriever.initial_map(earlier)
    if found is not None and earlier._fingerprint() != retriever._fingerprint():
        raise BadModel(f"{folder} was trained with another encoder; name that one (encoder), or begin without it")
    return added if found is None else replace(added, map=found[0], bias=found[1])


def _training_data(data: Sequence[TrainingSet], options: Any, encoding: Encoding) -> IdTrainingData:
    if not data:
        raise BadModel("name at least one dataset to train on")
    tools = {tool.id: tool for one in data for tool in one.dataset.tools}
    if options.trajectories and not options.agent_epochs:
        raise BadModel("trajectories are learned in agent_epochs: set it above 0, or leave trajectories out")
    talks = read_conversations(Path(options.trajectories)) if options.trajectories else []
    called = called_tools(talks, tools)
    every = {**tools, **called}
    digests = encoding.documents(list(every.values()))
    requests, gold = [], []
    for one in data:
        split = one.dataset.split(one.train)
        requests += [text for _, text in split.requests]
        gold += [tuple(sorted(few)) for few in split.gold]
    if not requests:
        raise BadDataset("the train splits hold no requests; name others")
    vectors = {tool_id: digests[tool.digest()] for tool_id, tool in every.items()}
    return IdTrainingData(tools, called, vectors, requests, gold, read_negatives(options.no_tool), talks)


def _identity(options: Any, seen: TrainedOn, plan: IdPlan, models: str) -> str:
    """A digest that tells whether an interrupted training can be resumed: options, data, models and assigned ids."""
    own = asdict(options)
    if own["decoding"] == "constrained":
        del own["decoding"]  # it came later: trainings that began without it are resumed
    found = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=16)
    splits = "".join(f"{split.digest}{split.split}{split.role}" for split in seen.splits)
    found.update((splits + models).encode())
    found.update(json.dumps(dict(plan.paths), sort_keys=True).encode())
    return found.hexdigest()


class IdExamples:
    """Makes training examples of documents, requests, prompts that need no tool, and conversations."""

    def __init__(
        self, retriever: GenerativeRetriever, plan: IdPlan, examples: IdTrainingData, data: Sequence[TrainingSet]
    ) -> None:
        """Tokenise all requests and prompts."""
        from toolscout.retrievers.generative.base import NO_TOOL, STOP

        self._options, self._plan, self._training_data, self._data = retriever.options, plan, examples, data
        retriever._prompter = None  # its limit on request tokens depends on the length of the ids
        self._retriever, self._prompter = retriever, retriever.prompter()
        self._no_tool, self._stop = retriever.token(NO_TOOL), retriever.token(STOP)
        self._request_prompts = [self._prompter.ask(text) for text in examples.requests]
        negative = [one.text for one in examples.prompts if one.split == TRAIN]
        self._no_tool_prompts = [self._prompter.ask(text) for text in negative]
        self._conversations: list[IdExample] = []

    def stages(self, options: Any) -> list[Stage]:
        """The training stages, in order. Raises BadModel if the options leave none."""
        from toolscout.training.id_generation import Stage

        stages = []
        if options.memorise:
            stages.append(Stage("memorise", self.documents, options.memorise, options.rate))
        if options.epochs:
            stages.append(Stage("retrieve", self.requests, options.epochs, options.rate))
        if options.trajectories and options.agent_epochs:
            self._conversations = conversation_examples(
                self._retriever, self._plan, self._training_data.talks, options.trajectories
            )
            stages.append(Stage("agent", self.conversations, options.agent_epochs, options.rate, judged=False))
        if not stages:
            raise BadModel("there is no stage to train: set memorise or epochs above 0")
        return stages

    def documents(self, epoch: int) -> list[IdExample]:
        """Examples from each tool's document, and from its next three lines, to its id.

        Unless all are to be memorised, only tools that a request or conversation uses are trained: had the others
        learned rows too, tools added later would be at a disadvantage against them.
        """
        known = {**self._training_data.tools, **self._training_data.called}
        gold = {tool_id for few in self._training_data.gold for tool_id in few}
        used = sorted(known if self._options.memorise_all else gold | self._training_data.called.keys())
        texts = [(tool_id, known[tool_id].document()) for tool_id in used]
        pieces = [(i, piece) for i, text in texts for piece in [text, *filter(str.strip, text.split("\n")[1:4])]]
        return [example for i, text in pieces for example in self._paths(self._prompter.ask(text), (i,))]

    def requests(self, epoch: int) -> list[IdExample]:
        """Examples from requests, some joined with another, to their tools' ids; and from prompts to "no tool"."""
        from toolscout.training.id_generation import IdExample

        rng = np.random.default_rng([self._options.seed, epoch, 1])
        found: list[IdExample] = []
        joined = rng.random(len(self._request_prompts)) < self._options.mix
        others = rng.integers(len(self._request_prompts), size=len(self._request_prompts))
        for place, (tokens, gold) in enumerate(zip(self._request_prompts, self._training_data.gold, strict=True)):
            if joined[place]:
                tokens = self._prompter.join(tokens, self._request_prompts[others[place]])
                gold = tuple(sorted({*gold, *self._training_data.gold[others[place]]}))
            found += self._paths(tokens, gold if self._options.order == "ids" else rng.permutation(gold).tolist())
        found += [IdExample(tokens, [(len(tokens) - 1, (self._no_tool,))]) for tokens in self._no_tool_prompts]
        return found

    def _paths(self, tokens: Sequence[int], gold: Sequence[str]) -> list[IdExample]:
        from toolscout.training.id_generation import IdExample

        paths = [self._plan.paths[tool_id] for tool_id in gold]
        lengths = [len(path) for path in paths]
        tokens = self._prompter.truncate(tokens, sum(lengths) if self._options.sets else max(lengths, default=0))
        end = len(tokens) - 1
        if self._options.sets:
            return [_listed(tokens, paths, self._stop, any_order=self._options.order == "any")]
        if all(len(path) == 1 for path in paths):
            return [IdExample(tokens, [(end, tuple(sorted({path[0] for path in paths})))])]
        return [_branched(tokens, paths)]

    def general(self) -> list[list[int]]:
        """The train prompts that need no tool, as general texts. Raises BadModel if there are none."""
        if not self._no_tool_prompts:
            raise BadModel("instruct_mix goes through prompts that need no tool; name some with --no-tool FOLDER")
        return self._no_tool_prompts

    def conversations(self, epoch: int) -> list[IdExample]:
        """All conversations, and a share of the request examples, so that retrieval is not forgotten."""
        options = self._options
        again = self.requests(options.epochs + epoch) if options.epochs and options.rehearse else []
        order = np.random.default_rng([options.seed, epoch, 2]).permutation(len(again))
        return [*self._conversations, *(again[place] for place in order[: round(options.rehearse * len(again))])]


def _listed(tokens: Sequence[int], paths: Sequence[Path_], stop: int, any_order: bool) -> IdExample:
    """One example: a prompt, the ids of all its tools one after another, and stop.

    With `any_order`, the next token of every id not yet written is a right one.
    """
    from toolscout.training.id_generation import IdExample

    written, right = list(tokens), []
    for number, path in enumerate(paths):
        due = paths[number:] if any_order else [path]
        for place, token in enumerate(path):
            nexts = {other[place] for other in due if other[:place] == path[:place]}
            right.append((len(written) - 1, tuple(sorted(nexts))))
            written.append(token)
    return IdExample(written, [*right, (len(written) - 1, (stop,))])


def _branched(tokens: Sequence[int], paths: Sequence[Path_]) -> IdExample:
    """One example: a prompt with the ids of all its tools as branches.

    After a prefix, the next token of every id that has this prefix is right. Each depth has the same total weight.
    """
    from toolscout.training.id_generation import IdExample

    end = len(tokens) - 1
    found: dict[Path_, int] = {(): end}
    written, branches = list(tokens), []
    for path in paths:
        for place in range(1, len(path)):
            found.setdefault(path[:place], len(written) + place - 1)
        written += path[:-1]
        branches.append(len(path) - 1)
    nexts = {start: tuple(sorted({p[len(start)] for p in paths if p[: len(start)] == start})) for start in found}
    depths = Counter(map(len, found))
    weights = [1 / (len(depths) * depths[len(start)]) for start in found]
    right = [(at, nexts[start]) for start, at in found.items()]
    order = sorted(range(len(right)), key=lambda i: right[i][0])
    return IdExample(written, [right[i] for i in order], branches, [weights[i] for i in order])


def _insert_training_tools(retriever: GenerativeRetriever, examples: IdTrainingData) -> None:
    """Put the tools of training into the index without ids; `apply_state` assigns those."""
    from toolscout.retrievers.document_index import DocumentIndex

    retriever.remove(retriever.ids())
    DocumentIndex._place(retriever, {tool_id: examples.vectors[tool_id] for tool_id in examples.tools})
    for tool_id, tool in examples.tools.items():
        retriever.names.add(tool_id, tool.aliases)


def _serve_with(retriever: GenerativeRetriever, network: TransformerNetwork) -> None:
    from toolscout.models.language.torch_engine import TorchEngine

    retriever._engine = TorchEngine.of(network, retriever.words())


def _judge(
    retriever: GenerativeRetriever, plan: IdPlan, data: Sequence[TrainingSet]
) -> Callable[[TransformerNetwork, LearnedState], Mapping[str, float]]:
    def judge(network: TransformerNetwork, state: LearnedState) -> Mapping[str, float]:
        retriever.apply_state(plan, state)
        _serve_with(retriever, network)
        return _dev_scores(retriever, data, _DEV_REQUESTS)

    return judge


def _stage_callback(
    retriever: GenerativeRetriever, plan: IdPlan
) -> Callable[[str, TransformerNetwork, LearnedState], None] | None:
    watch = retriever.watch
    if watch is None:
        return None

    def after(stage: str, network: TransformerNetwork, state: LearnedState) -> None:
        retriever.apply_state(plan, state)
        _serve_with(retriever, network)
        watch(stage, network)

    return after


def _dev_scores(retriever: GenerativeRetriever, data: Sequence[TrainingSet], most: int | None) -> dict[str, float]:
    """Mean scores over the dev splits, each ranked among the tools of its own dataset. `most`: requests per split."""
    found = [_measured(retriever, one, most) for one in data if one.dev]
    names = [name for name in _MEASURES if any(name in one for one in found)]
    return {name: float(np.mean([one[name] for one in found if name in one])) for name in names}


def _measured(retriever: GenerativeRetriever, one: TrainingSet, most: int | None) -> dict[str, float]:
    split = one.dataset.split(one.dev)
    step = max(1, len(split.requests) // most) if most else 1
    among = Scope(Allowed.of(ids=(tool.id for tool in one.dataset.tools)))
    ranked = retriever.rank([text for _, text in split.requests[::step]], _DEV_K, among)
    rankings = [ranking.ids() for ranking in ranked]
    return metrics.evaluate(rankings, split.gold[::step], _MEASURES, one.dataset.new_tools(one.train, one.dev))


def _calibrated(
    retriever: GenerativeRetriever, data: Sequence[TrainingSet], prompts: Sequence[Prompt]
) -> tuple[float, float] | None:
    """Platt scaling: the slope and intercept that turn log-odds against "no tool" into a probability on dev.

    (1, 0) where dev lacks either kind of text; None where dev shows the opposite of what the model says.
    """
    from toolscout.training.need_head import platt

    needing = [text for one in data if one.dev for _, text in one.dataset.split(one.dev).requests]
    others = [prompt.text for prompt in prompts if prompt.split == DEV]
    few = [texts[:: max(1, len(texts) // _CALIBRATION_REQUESTS)] for texts in (needing, others)]
    if not all(few):
        return 1.0, 0.0
    labels = np.array([True] * len(few[0]) + [False] * len(few[1]))
    weights = np.where(labels, 1 / labels.sum(), 1 / (~labels).sum())
    against = retriever.against_none([*few[0], *few[1]])
    with suppress(BadModel):
        return None if against is None else platt(against, labels, weights)
    return None
