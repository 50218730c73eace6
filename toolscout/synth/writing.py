"""Writes synthetic requests for tools with a language model, in batches; an interrupted run is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolscout.core.arrays import Floats
from toolscout.core.tool import Tool
from toolscout.errors import BadModel, BadRequest
from toolscout.llm import open_llm
from toolscout.llm.base import LanguageModel, Message
from toolscout.llm.finetuned import FINETUNED_FILE, is_finetuned, read_finetuned
from toolscout.llm.options import EndpointOptions
from toolscout.models.language.lora import ADAPTER_FILE
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.provenance import TrainedOn
from toolscout.search.progress import Progress
from toolscout.synth import prompts
from toolscout.synth.combinations import Combination, Partners, combined, kind_shares
from toolscout.synth.dataset_output import NO_ANSWER, SyntheticDataset, SyntheticRequest
from toolscout.synth.filters import Filter, cleaned, counted, found_again
from toolscout.synth.hash_draw import drawn
from toolscout.synth.inputs import SynthSource, Wanted, size_shares
from toolscout.synth.options import KINDS, TASK, SynthOptions
from toolscout.synth.progress import each, named
from toolscout.synth.saved_texts import Completing, Prompt, SavedTexts
from toolscout.synth.styles import STYLES, style_shares

_FORMAT = 2
_SIZES = {"1": 0.5, "2": 0.3, "3": 0.2}


@dataclass(frozen=True, slots=True)
class RequestWriter:
    """The language model that writes requests.

    about: the generator.json of a model that was fine-tuned for this, with statistics of its training requests (how
        many tools they need, why these go together, their styles); None for any other model.
    seen: the requests that it was trained on.
    fingerprint: identifies the model among others of its name.
    """

    llm: LanguageModel
    about: Mapping[str, Any] | None = None
    seen: TrainedOn = field(default_factory=TrainedOn)
    fingerprint: str = ""

    @classmethod
    def open(
        cls, spec: str, model: str = "", seed: int = 0, batch: int | None = None, options: EndpointOptions | None = None
    ) -> RequestWriter:
        """Open a model that `train_synth` wrote, or any other language model that `open_llm` accepts.

        Raises BadModel for a model that was fine-tuned for another task.
        """
        if not is_finetuned(spec):
            return cls(open_llm(spec, model=model, seed=seed, batch=batch, options=options), fingerprint=spec)
        about = read_finetuned(spec)
        if about.get("task") != TASK:
            raise BadModel(
                f"{spec} was trained for something else; train one that writes requests: toolscout synth-train"
            )
        contents = b"".join((Path(spec) / name).read_bytes() for name in (FINETUNED_FILE, ADAPTER_FILE))
        fingerprint = hashlib.blake2b(contents, digest_size=16).hexdigest()
        llm = open_llm(spec, model=model, seed=seed, batch=batch, options=options)
        return cls(llm, about, TrainedOn.load(Path(spec)), fingerprint)

    @property
    def trained(self) -> bool:
        """Whether it was fine-tuned to write requests, so that its prompts need no instruction."""
        return self.about is not None


@dataclass(frozen=True, slots=True)
class _Item:
    """A request to write."""

    place: int
    combination: Combination
    style: str
    key: str


def synthesise(
    source: SynthSource,
    writer: RequestWriter,
    options: SynthOptions,
    wanted: Wanted = "all",
    *,
    retriever: Retriever | None = None,
    retriever_seen: TrainedOn | None = None,
    vectors: Floats | None = None,
    partial: Path | None = None,
    completing: Completing | None = None,
    progress: Progress | None = None,
) -> SyntheticDataset:
    """Write requests for tools, and keep those that pass the filters.

    wanted: "all" writes for all tools, "new" for those without a known request.
    retriever: the retriever of the round-trip filter, with the tools indexed; `retriever_seen` is what it was trained
        on.
    vectors: the vectors of the tools' documents, by which similar tools are found.
    partial: a file that saves all written texts, from which the same call resumes; the caller removes it.
    completing: what has the model write, where it is not this process.
    """
    if options.examples and writer.trained:
        raise BadRequest("what was trained to write requests is shown none; leave examples out")
    anchors = source.anchors(wanted)
    plan = _Plan(source, writer, options, vectors, anchors, progress)
    prompts_of = _Prompts(writer, options, source)
    identity = plan.identity(source, writer)
    texts = SavedTexts(
        writer.llm, options.temperature, options.max_tokens, partial, identity, options.chunk, completing
    )
    learned = (digest for one in writer.seen.splits for digest in one.requests)  # a model may repeat these
    judge = Filter(source.tools, [text for text, _ in source.requests()], learned)
    round_trip = retriever if options.filtered and options.round_trip else None
    kept: dict[tuple[str, int], SyntheticRequest] = {}
    problems: list[str] = []
    for attempt in range(options.tries):
        report = named(f"try {attempt + 1}" if attempt else "", progress)
        items = plan.items(attempt, kept, report)
        written = texts.of(prompts_of.prompts(items, report), report)
        good, bad = _judged(items, written, judge, round_trip, options, report)
        problems += bad
        kept |= {(one.tools[0], one.place): one for one in good}
    return SyntheticDataset(
        name=source.name,
        tools=source.tools,
        requests=[kept[key] for key in sorted(kept)],
        dropped=counted(problems),
        options=options,
        llm=writer.llm.name,
        wanted=len(anchors),
        seen=writer.seen
        | (source.seen() if options.examples else TrainedOn())
        | ((retriever_seen or TrainedOn()) if round_trip is not None else TrainedOn()),
        usage=texts.usage.row(),
        problem=texts.problem,
        retriever=f"{round_trip.name}, first {options.round_trip}" if round_trip is not None else "",
    )


class _Plan:
    """Chooses the tools and the style of each request to write."""

    def __init__(
        self,
        source: SynthSource,
        writer: RequestWriter,
        options: SynthOptions,
        vectors: Floats | None,
        anchors: Sequence[str],
        progress: Progress | None,
    ) -> None:
        about, golds = writer.about or {}, [gold for _, gold in source.requests()]
        self._options, self._anchors = options, anchors
        self._partners = Partners(source.tools, vectors)
        sizes = options.sizes or (size_shares(golds) if golds else about.get("sizes")) or _SIZES
        self._sizes = _with_combinations(sizes, options.combinations)
        measured = kind_shares(self._partners, golds, progress) if golds and not options.kinds else about.get("kinds")
        self._kinds = options.kinds or measured or dict.fromkeys(KINDS, 1.0)
        texts = [text for text, _ in source.requests()]
        known = about.get("styles") or (style_shares(texts) if texts else None)
        self._styles = options.styles or known or dict.fromkeys(STYLES, 1.0)
        if any(share for size, share in self._sizes.items() if size != "1"):
            self._partners.prepare(anchors, [kind for kind, share in self._kinds.items() if share], progress)

    def identity(self, source: SynthSource, writer: RequestWriter) -> str:
        """A digest of the model, the tools and the prompts; a run may resume with other counts and filters."""
        found = hashlib.blake2b(json.dumps([_FORMAT, writer.llm.name, writer.fingerprint]).encode(), digest_size=16)
        asked = {name: getattr(self._options, name) for name in ("examples", "temperature", "max_tokens", "seed")}
        shares = [self._sizes, self._kinds, self._styles]
        found.update(json.dumps([asked, shares], sort_keys=True).encode())
        found.update("".join(sorted(tool.digest() for tool in source.tools)).encode())
        return found.hexdigest()

    def items(
        self, attempt: int, kept: Mapping[tuple[str, int], SyntheticRequest], progress: Progress | None
    ) -> list[_Item]:
        """The requests still to write; each attempt uses other combinations and styles."""
        places = [(place, anchor) for place in range(self._options.per_tool) for anchor in self._anchors]
        left = [(place, anchor) for place, anchor in places if (anchor, place) not in kept]
        found = []
        for place, anchor in each(left, "planning", progress):
            key = (self._options.seed, attempt, place)
            made = combined(self._partners, anchor, self._sizes, self._kinds, *key)
            style = drawn(self._styles, *key, anchor, "style")
            found.append(_Item(place, made, style, f"{attempt}.{place}.{anchor}"))
        return found


def _with_combinations(sizes: Mapping[str, float], share: float | None) -> dict[str, float]:
    """The shares of sizes, scaled so that those above 1 add up to `share`; None changes nothing."""
    if share is None:
        return dict(sizes)
    several = {size: part for size, part in sizes.items() if size != "1" and part} or {"2": 0.6, "3": 0.4}
    total = sum(several.values())
    return {"1": 1 - share} | {size: share * part / total for size, part in several.items()}


def _judged(
    items: Sequence[_Item],
    written: Mapping[str, tuple[str, bool]],
    judge: Filter,
    retriever: Retriever | None,
    options: SynthOptions,
    progress: Progress | None,
) -> tuple[list[SyntheticRequest], list[str]]:
    """The requests that are kept, and why the others are not."""
    good: list[SyntheticRequest] = []
    problems: list[str] = []
    for item in each(items, "checking", progress):
        tools = item.combination.tools
        if item.key not in written:
            problems.append(NO_ANSWER)
            continue
        text = cleaned(written[item.key][0])
        problem = judge.problem(text, tools, written[item.key][1]) if options.filtered or not text else ""
        if problem:
            problems.append(problem)
        else:
            good.append(SyntheticRequest(text, tools, item.place, item.combination.kind, item.style))
    if retriever is not None and good:
        anchors, sizes = [one.tools[0] for one in good], [len(one.tools) for one in good]
        found = found_again(retriever, [one.text for one in good], anchors, sizes, options.round_trip, progress)
        problems += ["not found again"] * found.count(False)
        good = [one for one, again in zip(good, found, strict=True) if again]
    if not options.filtered:
        return good, problems
    repeated = [judge.repeated(one.text, one.tools[0]) for one in each(good, "comparing", progress)]
    return [one for one, again in zip(good, repeated, strict=True) if not again], problems + repeated


class _Prompts:
    """The prompt of each request to write."""

    def __init__(self, writer: RequestWriter, options: SynthOptions, source: SynthSource) -> None:
        self._trained, self._options = writer.trained, options
        self._tools = {tool.id: tool for tool in source.tools}
        self._known = source.requests() if options.examples else []

    def prompts(self, items: Sequence[_Item], progress: Progress | None) -> list[Prompt]:
        """The prompts of items, by their keys."""
        return [self._prompt(item) for item in each(items, "preparing prompts", progress)]

    def _prompt(self, item: _Item) -> Prompt:
        """A prompt; its digest is of the item too, so that a text written for another one is never used for it."""
        messages = [[message.role, message.content] for message in self._conversation(item)]
        content = json.dumps([item.key, item.combination.tools, item.style, messages])
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        return Prompt(item.key, digest, lambda: self._conversation(item))

    def _conversation(self, item: _Item) -> list[Message]:
        tools: list[Tool] = [self._tools[tool_id] for tool_id in item.combination.tools]
        examples = prompts.shown(self._known, self._tools, self._options.examples, self._options.seed, item.key)
        return prompts.conversation(tools, STYLES[item.style], examples, trained=self._trained)
