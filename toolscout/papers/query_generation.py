"""LLM query generation for tool retrieval: a language model writes queries, and their rankings are interleaved.

Three generators: a prompted model, one that was fine-tuned to write the descriptions of the gold tools ("supervised"),
and one that was then aligned with the retriever by the tools it finds ("aligned").
"""

from __future__ import annotations

from toolscout.papers.paper import Column, Experiment, Line, Paper, Table

# By the name of a line: the name of the form in studies/rewriting.py, and its options.
_FORMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Utterance alone": ("alone", ("share=0",)),
    "Zero-shot": ("zero", ()),
    "Supervised": ("supervised", ("epochs=3",)),
    "Aligned": ("aligned", ("epochs=3", "align=2", "held_out_share=0.15")),
    "QTA": ("qta", ("epochs=3", "preset=qta", "held_out_share=0.15")),
}
_UNTRAINED = ("alone", "zero")
# The paper searches with the vectors of an encoder as it is; what is served is a hybrid with words beside vectors.
_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dense-raw": (("dense",), ("dense.encoder=raw",)),
    "hybrid": (("hybrid",), ()),
}


def _experiment(line: str, over: str, family: str) -> Experiment:
    """Return a form of rewriting over a retriever; its rows may come from studies/rewriting.py."""
    form, own = _FORMS[line]
    parts, settings = _PARTS[over]
    trained = form not in _UNTRAINED
    return Experiment(
        f"rewrite-{over}-{form}" + (f"-toollens-{family}" if trained else ""),
        "rewrite",
        "toollens",
        (*settings, *own),
        train=family if trained else "",
        parts=parts,
        also=(f"rewriting-{over}-{form}",),
        hours=0.0 if form == "alone" else 2.0 if form == "zero" else 12.0,
    )


def _table(part: str, split: str, family: str, columns: str) -> Table:
    published = ("Supervised",) if part == "in-domain" else ("Aligned",)
    lines = tuple(
        Line(
            name,
            _experiment(name, "dense-raw", family),
            _experiment(name, "hybrid", family) if name != "QTA" else None,
            "summary" if name in published else "",
        )
        for name in _FORMS
    )
    about = "tools that training has seen" if part == "in-domain" else "tools that training has not seen"
    return Table(
        "main",
        part,
        f"Recall over {about}",
        (Column(columns, "recall@5", (split,)),),
        lines,
        "query-generation",
        (f"Our numbers are of ToolLens, {split}; the paper's of its own synthetic requests, which are not public.",),
    )


PAPER = Paper(
    key="query-generation",
    title="LLM query generation for tool retrieval (Kachuee et al., Amazon)",
    venue="COLING-Industry 2025",
    link="https://arxiv.org/abs/2412.03573",
    published="--retriever rewrite --part dense --option dense.encoder=raw",
    settings=(
        ("queries", "one for each tool that the request needs; their rankings are interleaved with the request's own"),
        ("supervised", "the target is the descriptions of the gold tools"),
        ("aligned", "sample, retrieve, reward by a retrieval metric, prefer the better sample; repeat"),
        ("unknown", "the language model, the encoder, the prompts, the loss of the alignment, and its rounds"),
    ),
    differences=(
        "The paper's text could not be had: what its settings leave open is this package's choice.",
        "The language model is SmolLM2 with 135 million weights; pass another by its own option (base, llm).",
        "The alignment is DPO on pairs of samples, rewarded by NDCG@5 and COMP@5 of the interleaved ranking, "
        "two rounds, "
        "on requests for tools that the model was not taught to describe.",
        "A tool's description is cut to 16 words as a target; the prompted model is shown six examples, so its line is "
        "not without examples.",
        "As published: over the vectors of all-MiniLM-L6-v2 as it is. As served: over a hybrid of words and vectors.",
        "The line QTA is this package's form of another paper's recipe (arXiv 2410.03212): one round, "
        "rewarded by rank, "
        "the request itself not searched.",
    ),
    tables=(
        _table("in-domain", "test", "train", "in-domain R@5"),
        _table("out-of-domain", "unseen_tool.test", "unseen_tool", "out-of-domain R@5"),
    ),
)
