"""Fine-tunes a small language model to write a request, given the documents of its tools."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolscout.core.tool import Tool
from toolscout.errors import BadDataset, BadModel, MissingExtra
from toolscout.evaluation.vector_cache import tool_vectors
from toolscout.llm.base import Message
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import FitProgress, FitReport, Options
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.synth import prompts
from toolscout.synth.combinations import Partners, kind_shares
from toolscout.synth.filters import Filter
from toolscout.synth.hash_draw import chance
from toolscout.synth.inputs import size_shares
from toolscout.synth.options import TASK
from toolscout.synth.progress import named
from toolscout.synth.styles import style_of, style_shares
from toolscout.training.text_options import TextTrainingOptions

Pair = tuple[list[Message], str]


@dataclass(frozen=True, slots=True)
class WriterTrainingOptions(TextTrainingOptions, Options):
    """How a model that writes requests is trained.

    per_scene: the most requests of one set of tools per epoch; the next epoch uses others. This keeps the model from
        memorising sets with many requests.
    most_tools: requests that need more tools are left out.
    """

    per_scene: int = 8
    most_tools: int = 4

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        TextTrainingOptions.__post_init__(self)
        if min(self.per_scene, self.most_tools) < 1:
            raise BadModel("per_scene and most_tools must be at least 1")


class RequestExamples:
    """The training requests that pass the filters, by set of tools."""

    def __init__(self, sets: Sequence[TrainingSet], options: WriterTrainingOptions) -> None:
        """Read the train splits; raises BadDataset where no request is left."""
        self._options = options
        self._scenes: dict[tuple[Tool, ...], list[str]] = defaultdict(list)
        self.left_out = Counter[str]()
        for one in sets:
            tools = {tool.id: tool for tool in one.dataset.tools}
            judge, split = Filter(one.dataset.tools), one.dataset.split(one.train)
            for (_, text), gold in zip(split.requests, split.gold, strict=True):
                problem = "too many tools" if len(gold) > options.most_tools else judge.problem(text, gold)
                if problem:
                    self.left_out[problem] += 1
                else:
                    self._scenes[tuple(tools[tool_id] for tool_id in sorted(gold))].append(text)
        if not self._scenes:
            raise BadDataset(f"no request is fit to learn from ({dict(self.left_out)}); name other datasets")
        for texts in self._scenes.values():
            texts.sort(key=lambda text: chance(options.seed, text))

    def texts(self) -> list[str]:
        """All training requests."""
        return [text for texts in self._scenes.values() for text in texts]

    def pairs(self, epoch: int) -> list[Pair]:
        """The (prompt, request) pairs of an epoch; the order of a request's tools differs by epoch."""
        found: list[Pair] = []
        for tools, texts in self._scenes.items():
            count, start = min(self._options.per_scene, len(texts)), epoch * self._options.per_scene
            for place in range(start, start + count):
                text = texts[place % len(texts)]
                order = sorted(tools, key=lambda tool: chance(self._options.seed, epoch, text, tool.id))
                found.append((prompts.conversation(order, style_of(text), trained=True), prompts.plain_request(text)))
        return sorted(found, key=lambda pair: chance(self._options.seed, epoch, pair[0][0].content, pair[1]))


def train_synth(
    sets: Sequence[TrainingSet],
    folder: Path,
    options: WriterTrainingOptions | None = None,
    *,
    encoder: TextEncoder | None = None,
    progress: FitProgress | None = None,
) -> FitReport:
    """Fine-tune a model on the train splits, and write it to `folder`, with a record of what it was trained on.

    `encoder` finds similar tools, to measure how often requests need such tools. Raises BadModel or BadDataset.
    """
    try:
        from toolscout.training.text_generation import finetune
    except ImportError as error:
        raise MissingExtra("training", "train") from error

    options = options or WriterTrainingOptions()
    if not sets:
        raise BadModel("name at least one dataset to train on")
    if not options.epochs and not options.init_from:
        raise BadModel(
            "with 0 epochs nothing is learned; set epochs above 0, or name a model to start from as init_from"
        )
    sets = [TrainingSet(one.dataset, one.train, "", one.history) for one in sets]
    examples = RequestExamples(sets, options)
    about = {
        "task": TASK,
        "settings": asdict(options) | {name: Path(getattr(options, name)).name for name in ("base", "init_from")},
        "data": [f"{one.dataset.name}:{one.train}" for one in sets],
        "sizes": size_shares([gold for one in sets for gold in one.dataset.split(one.train).gold]),
        "kinds": _kinds(sets, encoder, progress),
        "styles": style_shares(examples.texts()),
        "not_learned": dict(examples.left_out),
    }
    seen = TrainedOn.of(sets) | (TrainedOn.load(Path(options.init_from)) if options.init_from else TrainedOn())
    folder.mkdir(parents=True, exist_ok=True)
    seen.save(folder)  # first, so that a complete model always has it
    report = finetune(options, examples.pairs, folder, about=about, progress=progress).report
    left_out = ", ".join(f"{count:,} {why}" for why, count in examples.left_out.most_common())
    notes = (f"not learned from: {left_out}",) if left_out else ()
    return FitReport(report["seconds"], report["device"], report["parameters"], report.get("dev") or {}, notes)


def _kinds(sets: Sequence[TrainingSet], encoder: TextEncoder | None, progress: FitProgress | None) -> dict[str, float]:
    """The shares of the kinds of combinations, as the mean over datasets."""
    found = []
    for one in sets:
        report = named(one.dataset.name, progress)
        vectors = tool_vectors(one.dataset.tools, encoder, progress=report) if encoder is not None else None
        found.append(kind_shares(Partners(one.dataset.tools, vectors), one.dataset.split(one.train).gold, report))
    found = [shares for shares in found if shares]
    kinds = dict.fromkeys(kind for shares in found for kind in shares)
    return {kind: round(sum(shares.get(kind, 0.0) for shares in found) / len(found), 4) for kind in kinds}
