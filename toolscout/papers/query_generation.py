"""LLM query generation for tool retrieval: a language model writes queries, and their rankings are interleaved.

Three generators: a prompted model, one that was fine-tuned to write the descriptions of the gold tools ("supervised"),
and one that was then aligned with the retriever by the tools it finds ("aligned"). One fine-tuned model serves all
retrievers and all ways of asking it; it is selected and aligned over the vectors of an encoder as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from toolscout.papers.paper import Column, Experiment, Line, Paper, Table, Unavailable
from toolscout.retrievers.rewrite.rewriter import RewriteOptions

# The paper searches with the vectors of an encoder as it is; what is served is a hybrid with words beside vectors.
_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dense-raw": (("dense",), ("dense.encoder=raw",)),
    "hybrid": (("hybrid",), ()),
    "bm25": (("bm25",), ()),
}
PUBLISHED, SERVED, SPARSE = _PARTS
_SEEN = Unavailable(
    "an encoder that has not seen this split: the package's was selected on some of its requests; toolscout evaluate "
    "--drop-seen leaves those out"
)
_HELD = "held_out_share=0.15"
_WHOLE = ("target_words=0", "max_tokens=512")
# Worked examples in the prompt of few-shot, and the number of queries, unless a line says otherwise.
_FEW_SHOT, _QUERIES = RewriteOptions().examples, RewriteOptions().queries


@dataclass(frozen=True, slots=True)
class _Set:
    """Requests that are asked, and what models are fine-tuned on: a family of splits of the same dataset.

    family: "" where the dataset has no requests to learn from; then a model of ToolLens writes.
    published: what the paper calls requests of this kind, "" where it has none.
    """

    part: str
    dataset: str
    split: str
    family: str
    epochs: int = 3
    published: str = ""


_TOOLLENS = _Set("ToolLens", "toollens", "test", "train", published="in-domain")
_SETS = (
    _TOOLLENS,
    _Set("ToolLens, unseen tools", "toollens", "unseen_tool.test", "unseen_tool", published="out-of-domain"),
    _Set("ToolBench-G3", "toolbench-g3", "test", "train"),
    _Set("ToolBench-G3, unseen tools", "toolbench-g3", "unseen_tool.test", "unseen_tool"),
    _Set("UltraTool", "ultratool", "test", "train", 6),
    _Set("bundled", "bundled", "test", ""),
)


def _prompted(data: _Set, form: str, over: str, changes: tuple[str, ...] = (), also: str = "") -> Experiment:
    """Return a form in which no model is fine-tuned.

    `also`: the name of the same form in studies/rewriting.py, whose hybrid has another encoder than the one served.
    """
    if (form, over) == ("alone", SERVED):
        return Experiment("default", "hybrid", data.dataset, train="")
    former = (f"rewrite-{over}-zero",) if form == "few-shot" else ()  # what its rows were called before
    parts, settings = _PARTS[over]
    return Experiment(
        f"rewrite-{over}-{form}",
        "rewrite",
        data.dataset,
        (*settings, *changes),
        train="",
        parts=parts,
        also=(f"rewriting-{over}-{also}", *former) if also and over != SERVED else (),
        hours=0.0 if form == "alone" else 2.0,
    )


def _finetuned(data: _Set, form: str, changes: tuple[str, ...], hours: float = 12.0) -> Experiment:
    """Return the training of a model that writes queries, over the published retriever; rows may be a study's."""
    parts, settings = _PARTS[PUBLISHED]
    return Experiment(
        f"rewrite-{PUBLISHED}-{form}-{data.dataset}-{data.family}",
        "rewrite",
        data.dataset,
        (*settings, *changes),
        train=data.family,
        parts=parts,
        also=(f"rewriting-{PUBLISHED}-{form}",),
        hours=hours,
    )


def _training(data: _Set, form: str) -> Experiment:
    """Return the training of a model by the name of its form; on ToolLens where the set has nothing to learn from."""
    if not data.family:
        return _training(_TOOLLENS, form)
    epochs = f"epochs={data.epochs}"
    changes = {
        "supervised": (epochs,),
        "taught": (epochs, _HELD),  # all but some tools: an alignment goes on from it
        "aligned": (epochs, "align=2", _HELD),
        "qta": (epochs, "preset=qta", _HELD),
        "supervised-whole": (epochs, *_WHOLE),
        "aligned-whole": (epochs, "align=2", _HELD, *_WHOLE),
    }
    return _finetuned(data, form, changes[form])


def _alignment(data: _Set, rounds: int, *, held: bool) -> Experiment:
    """Return an alignment of so many rounds; it goes on from a model that was fine-tuned before."""
    if not data.family:
        return _alignment(_TOOLLENS, rounds, held=held)
    if held and rounds == 2:
        return _training(data, "aligned")
    form = f"aligned-rounds{rounds}" if held else f"aligned-known-rounds{rounds}"
    changes = ("epochs=0", f"align={rounds}", *([_HELD] if held else []))
    made = _finetuned(data, form, changes, 4.0 * rounds)
    studied = "aligned-known" if (held, rounds) == (False, 2) else form
    return replace(
        made,
        generator=_training(data, "taught" if held else "supervised"),
        also=(f"rewriting-{PUBLISHED}-{studied}",),
    )


def _written_by(
    trained: Experiment, data: _Set, over: str, form: str = "", changes: tuple[str, ...] = (), also: str = ""
) -> Experiment:
    """Return a search with the queries of a fine-tuned model: the trained one itself, or its model used elsewhere.

    form, changes: how else it is asked; "" for as it was trained.
    """
    same = (data.dataset, data.family) == (trained.dataset, trained.train)
    if same and over == PUBLISHED and not form:
        return trained
    name = trained.name.removeprefix(f"rewrite-{PUBLISHED}-")
    own = name.removesuffix(f"-{trained.dataset}-{trained.train}")
    parts, settings = _PARTS[over]
    whole = tuple(one for one in _WHOLE if one in trained.settings)
    alone = ("utterance=false",) if "preset=qta" in trained.settings else ()
    studied = also or (own if not form else "")
    return Experiment(
        "-".join(filter(None, ["rewrite", over, name, form])),
        "rewrite",
        data.dataset,
        (*settings, *whole, *alone, *changes),
        train="",
        parts=parts,
        generator=trained,
        also=(f"rewriting-{over}-{studied}",) if studied and same and over != SERVED else (),
        hours=2.0,
    )


def _line(name: str, ours: dict[str, Experiment], data: _Set, source: str = "") -> Line:
    unseen = data.family not in ("", "train")
    return Line(name, ours[PUBLISHED], _SEEN if unseen else ours[SERVED], source)


def _forms(data: _Set, over: tuple[str, ...] = (PUBLISHED, SERVED)) -> dict[str, dict[str, Experiment]]:
    """Return the generators of the paper over retrievers, by the names of their lines."""
    return {
        "Utterance alone": {one: _prompted(data, "alone", one, ("share=0",), "alone") for one in over},
        "Zero-shot": {one: _prompted(data, "zero-shot", one, ("examples=0",)) for one in over},
        "Few-shot": {one: _prompted(data, "few-shot", one, (), "zero") for one in over},
        "Supervised": {one: _written_by(_training(data, "supervised"), data, one) for one in over},
        "Aligned": {one: _written_by(_training(data, "aligned"), data, one) for one in over},
    }


_COLUMNS = (("R@3", "recall@3"), ("R@5", "recall@5"), ("C@5", "comp@5"))


def _columns(data: _Set) -> tuple[Column, ...]:
    return tuple(Column(head, metric, (data.split,)) for head, metric in _COLUMNS)


def _differences(data: _Set) -> tuple[str, ...]:
    found: tuple[str, ...] = (
        f"Our numbers are of {data.dataset}, {data.split}; the paper's of its own synthetic requests, which are not "
        "public.",
    )
    if not data.family:
        found += ("This set has no requests to learn from: fine-tuned models are those of ToolLens.",)
    return found


def _main(data: _Set) -> Table:
    """Return the paper's table on requests like its own, or its generators on others."""
    source, seen = {"in-domain": ("Supervised", "has"), "out-of-domain": ("Aligned", "has not")}.get(
        data.published, ("", "")
    )
    lines = [_line(name, ours, data, "summary" if name == source else "") for name, ours in _forms(data).items()]
    return Table(
        "main",
        data.published or data.part,
        f"Recall over tools that training {seen} seen" if seen else f"The generators on {data.part}",
        (Column(f"{data.published} R@5", "recall@5", (data.split,)),) if seen else _columns(data),
        (*lines, Line("QTA", _written_by(_training(data, "qta"), data, PUBLISHED))),
        "query-generation" if seen else "",
        _differences(data),
    )


def _retrievers(data: _Set) -> Table:
    """Return the generators over sparse and over dense retrieval."""
    named = {SPARSE: "sparse (BM25)", PUBLISHED: "dense"}
    lines = [
        Line(f"{name}, {named[over]}", ours[over])
        for name, ours in _forms(data, (SPARSE, PUBLISHED)).items()
        for over in (SPARSE, PUBLISHED)
    ]
    return _table("retrievers", data, "Queries over sparse and over dense retrieval", lines)


def _numbers(data: _Set) -> Table:
    """Return what the number of queries counts."""
    lines = [Line(f"{name}, {_plural(count)}", ours) for count in range(1, 9) for name, ours in _counted(data, count)]
    return _table("queries", data, "One to eight queries", lines)


def _counted(data: _Set, count: int) -> Iterator[tuple[str, Experiment]]:
    """Yield the generators with at most so many queries; with the usual number they are those of the main table."""
    forms = _forms(data, (PUBLISHED,))
    own, end = (f"queries={count}",), f"queries{count}"
    if count == _QUERIES:
        yield from ((name, forms[name][PUBLISHED]) for name in ("Zero-shot", "Few-shot", "Supervised"))
        return
    yield "Zero-shot", _prompted(data, f"zero-shot-{end}", PUBLISHED, ("examples=0", *own))
    yield "Few-shot", _prompted(data, f"few-shot-{end}", PUBLISHED, own)
    yield "Supervised", _written_by(_training(data, "supervised"), data, PUBLISHED, end, own)


def _plural(count: int) -> str:
    return f"{count} query" if count == 1 else f"{count} queries"


def _ways(data: _Set) -> Table:
    """Return the ways of asking: describe, decompose, iterate; with the request's own ranking and without."""
    supervised, over, alone = _training(data, "supervised"), (PUBLISHED, SERVED), ("utterance=false",)
    forms = _forms(data)

    def prompted(form: str, *changes: str, also: str = "") -> dict[str, Experiment]:
        return {one: _prompted(data, form, one, changes, also) for one in over}

    def asked(form: str, *changes: str, also: str = "") -> dict[str, Experiment]:
        return {one: _written_by(supervised, data, one, form, changes, also) for one in over}

    ours = {
        "Zero-shot, describe": forms["Zero-shot"],
        "Zero-shot, decompose": prompted("decompose", "form=decompose", also="decompose"),
        "Zero-shot, iterate": prompted("zero-shot-iterate", "form=iterate", "examples=0"),
        "Few-shot, describe": forms["Few-shot"],
        "Few-shot, iterate": prompted("few-shot-iterate", "form=iterate", also="iterate"),
        "Supervised, describe": forms["Supervised"],
        "Supervised, iterate": asked("iterate", "form=iterate", also="iterate-supervised"),
        "Zero-shot, without the request's own ranking": prompted("zero-shot-queries-alone", "examples=0", *alone),
        "Few-shot, without the request's own ranking": prompted("few-shot-queries-alone", *alone),
        "Supervised, without the request's own ranking": asked("queries-alone", *alone, also="decompose-supervised"),
        "Cut by rules, no model": prompted("rules", "llm=rules", "form=decompose", also="rules"),
    }
    caption = "Describe, decompose and iterate; interleaved with the request's own ranking or not"
    return _table("forms", data, caption, [_line(name, found, data) for name, found in ours.items()])


def _targets(data: _Set) -> Table:
    """Return what it counts whether a model learns to write 16 words about a tool or its whole description."""
    lines = [
        _line(name, {one: _written_by(_training(data, form), data, one) for one in (PUBLISHED, SERVED)}, data)
        for name, form in (
            ("Supervised, 16 words", "supervised"),
            ("Supervised, whole descriptions", "supervised-whole"),
            ("Aligned, 16 words", "aligned"),
            ("Aligned, whole descriptions", "aligned-whole"),
        )
    ]
    return _table("targets", data, "Targets of 16 words and whole descriptions", lines)


def _rounds(data: _Set) -> Table:
    """Return what rounds of alignment count, with some tools held out of the fine-tuning before, and without."""
    supervised, taught = _training(data, "supervised"), _training(data, "taught")
    lines = [
        Line("0 rounds, no tools held out", _written_by(supervised, data, PUBLISHED)),
        Line("0 rounds, tools held out", _written_by(taught, data, PUBLISHED)),
        *(
            Line(
                f"{rounds} round{'' if rounds == 1 else 's'}, {'' if held else 'no '}tools held out",
                _written_by(_alignment(data, rounds, held=held), data, PUBLISHED),
            )
            for rounds in range(1, 5)
            for held in (False, True)
        ),
    ]
    return _table("alignment", data, "Rounds of DPO, with 15 % of the tools held out before and without", lines)


def _larger(data: _Set) -> Table:
    """Return the prompted forms with the language model that is passed."""
    forms = {
        "Zero-shot": ("zero-shot", ("examples=0",)),
        "Few-shot": ("few-shot", ()),
        "Zero-shot, decompose": ("decompose", ("form=decompose",)),
        "Zero-shot, iterate": ("zero-shot-iterate", ("form=iterate", "examples=0")),
        "Few-shot, iterate": ("few-shot-iterate", ("form=iterate",)),
    }
    lines = [
        _line(
            name,
            {
                one: replace(_prompted(data, f"larger-{form}", one, changes), larger_model=True, hours=1.0)
                for one in (PUBLISHED, SERVED)
            },
            data,
        )
        for name, (form, changes) in forms.items()
    ]
    return _table("larger-model", data, "Queries by a larger language model, passed with --llm", lines)


def _table(id: str, data: _Set, caption: str, lines: list[Line]) -> Table:
    differences = ("The paper has no such table that could be read.", *_differences(data))
    return Table(id, data.part, caption, _columns(data), tuple(lines), differences=differences)


PAPER = Paper(
    key="query-generation",
    title="LLM query generation for tool retrieval (Kachuee et al., Amazon)",
    venue="COLING-Industry 2025",
    link="https://arxiv.org/abs/2412.03573",
    published="--retriever rewrite --part dense --option dense.encoder=raw --option examples=0",
    settings=(
        ("queries", "one for each tool that the request needs; their rankings are interleaved with the request's own"),
        ("supervised", "the target is the descriptions of the gold tools"),
        ("aligned", "sample, retrieve, reward by a retrieval metric, prefer the better sample; repeat"),
        ("unknown", "the language model, the encoder, the prompts, the loss of the alignment, and its rounds"),
    ),
    differences=(
        "The paper's text could not be had: what its settings leave open is this package's choice.",
        "The language model is SmolLM2 with 135 million weights; --llm passes another one for the table larger-model.",
        "The alignment is DPO on pairs of samples, rewarded by NDCG@5 and COMP@5 of the interleaved ranking, on "
        "requests for tools that the model was not taught to describe, two rounds, unless a line says otherwise.",
        "A tool's description is cut to 16 words as a target, unless a line says otherwise. Zero-shot has no worked "
        f"examples in the prompt, few-shot {_FEW_SHOT} tools of the catalogue.",
        "Models are fine-tuned and aligned over the vectors of all-MiniLM-L6-v2 as it is; the same model writes for "
        "all retrievers.",
        "As published: over those vectors. As served: over a hybrid of words and vectors.",
        "The line QTA is this package's form of another paper's recipe (arXiv 2410.03212): one round, rewarded by "
        "rank, the request itself not searched.",
    ),
    tables=tuple(
        make(data) for make in (_main, _retrievers, _numbers, _ways, _targets, _rounds, _larger) for data in _SETS
    ),
)
