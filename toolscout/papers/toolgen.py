"""ToolGen: each tool is a token that a language model writes. Its stages, its retrieval tables and its ablations.

Three stages: memorisation (document to token), retrieval (request to token), and agent (whole trajectories). The
tables of solved requests need a judge and are shown with the paper's numbers alone.
"""

from __future__ import annotations

from toolscout.papers.colt import SERVED_ENCODER
from toolscout.papers.paper import Column, Experiment, Line, Ours, Paper, Table, Unavailable, Weights, published_lines

# ToolBench's test requests come in six files; papers report them as three parts.
PARTS = {
    "G1": ("test_G1_instruction", "test_G1_tool", "test_G1_category"),
    "G2": ("test_G2_instruction", "test_G2_category"),
    "G3": ("test_G3_instruction",),
}
BY_PART = tuple(
    Column(f"{part} N@{k}", f"toolgen_ndcg@{k}", splits) for part, splits in PARTS.items() for k in (1, 3, 5)
)
ON_TOOLLENS = tuple(
    Column(head, metric)
    for head, metric in (("N@1", "toolgen_ndcg@1"), ("R@3", "recall@3"), ("R@5", "recall@5"), ("C@5", "comp@5"))
)
TOOLBENCH_ALL = "toolbench-all"
ABOUT_ALL = "the folder toolbench, whose training requests are of G3 alone, with those of G1 and G2 added"
LLAMA = Weights("llama-3-8b", "Llama-3-8B", "base")
EMBEDDING = Weights("text-embedding-3-large", "OpenAI's embedding model", "encoder", "https://HOST/v1?model=NAME")
RETRIEVER = Weights("toolbench-retriever", "ToolBench's ToolRetriever (BERT)", "encoder")
IDS = {"atomic": "", "numeric": "numeric", "hierarchical": "hierarchical", "semantic": "semantic"}
IN_DOMAIN = Unavailable("evaluate ranks all tools of a dataset; it has no option to rank those of one part alone")
JUDGED = Unavailable(
    "solved requests are judged by a language model behind StableToolBench's server, which this command does not run; "
    "python -m studies.agent has this package's own measures of an agent"
)
ABILITY = Unavailable(
    "the tests of general ability are not here; python -m studies.generative_stages measures what a model forgets"
)
NO_CONSTRAINT = Unavailable("toolgen always decodes under its trie; it has no option to decode without")
I1_ONLY = Unavailable(
    "the texts of ToolBench's G1 training requests are not public; a BEIR folder with them could be passed to "
    "toolscout train and toolscout evaluate"
)


def _published(name: str, changes: tuple[str, ...] = (), weights: Weights | None = LLAMA) -> Experiment:
    """Return the published form on ToolBench, trained on the requests of all parts."""
    settings = ("preset=published", *changes)
    name = f"toolgen-published-{name}"
    return Experiment(name, "toolgen", TOOLBENCH_ALL, settings, weights=weights, hours=1e4, about_data=ABOUT_ALL)


def retrieval_lines(source: str) -> dict[str, Ours]:
    """Return the experiments of baselines that both ToolGen and ToolWeaver report, by the names of their lines."""
    encoder = Experiment("encoder-text-embedding-3-large", "dense", "toolbench", train="", weights=EMBEDDING)
    retriever = Experiment("encoder-toolbench-retriever", "dense", "toolbench", train="", weights=RETRIEVER)
    name = "EmbSim (text-embedding-3-large)" if source == "ToolGen" else "EmbSim"
    return {name: encoder, "ToolRetriever": retriever}


def with_bm25(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Return the lines, with our BM25 as served beside the paper's."""
    bm25 = Experiment("default", "bm25", "toolbench", train="")
    return tuple(Line(one.name, one.published, bm25, one.source) if one.name == "BM25" else one for one in lines)


def small(method: str, dataset: str, name: str, changes: tuple[str, ...] = (), hours: float = 8.0) -> Experiment:
    """Return the published form with the language model that this package has."""
    settings = ("preset=published", *changes)
    return Experiment(f"{method}-published-{name}", method, dataset, settings, hours=hours)


def served(method: str, name: str, changes: tuple[str, ...] = ()) -> Experiment:
    """Return a method as this package serves it on ToolLens: fused with the cosines of an encoder trained there."""
    settings = ("epochs=6", *changes)
    return Experiment(f"{name}-toollens", method, "toollens", settings, encoder=SERVED_ENCODER["toollens"], hours=4.0)


def _multi_domain() -> Table:
    ours: dict[str, Ours] = {
        **retrieval_lines("ToolGen"),
        **{
            f"ToolGen, {kind} ids": _published(f"toolbench-{kind}", (f"ids={kind}",) if option else ())
            for kind, option in IDS.items()
        },
    }
    own = Line(
        "ToolGen, atomic ids (SmolLM2, trained on G3 alone)",
        small("toolgen", "toolbench", "toolbench-g3-requests", hours=300.0),
        Experiment("toolgen-toolbench", "toolgen", "toolbench", ("epochs=3",), hours=20.0),
    )
    lines = (*with_bm25(published_lines("toolbench", "ToolGen", ours)), own)
    return Table("1", "multi-domain", "Retrieval among all tools of ToolBench", BY_PART, lines, "toolbench")


def _ablation() -> Table:
    ours: dict[str, Ours] = {
        "without memorisation": _published("toolbench-without-memorisation", ("memorise=0",)),
        "without retrieval training": _published("toolbench-without-retrieval", ("epochs=0",)),
        "without constraint": NO_CONSTRAINT,
    }
    lines = published_lines("toolgen-ablation", "ToolGen", ours)
    return Table("ablation", "", "ToolGen without its stages", BY_PART, lines, "toolgen-ablation")


def _on_toollens() -> Table:
    """Return the paper's comparisons on data that is here: kinds of ids, and stages."""
    lines = [
        Line(
            f"ToolGen, {kind} ids",
            small("toolgen", "toollens", f"toollens-{kind}", (f"ids={kind}",) if option else ()),
            served("toolgen", "toolgen" if kind == "atomic" else kind, (f"ids={kind}",) if option else ()),
        )
        for kind, option in IDS.items()
    ]
    lines += [
        Line("without memorisation", small("toolgen", "toollens", "toollens-without-memorisation", ("memorise=0",))),
        Line("without retrieval training", small("toolgen", "toollens", "toollens-without-retrieval", ("epochs=0",))),
    ]
    return Table(
        "toollens",
        "",
        "Kinds of ids and stages, on ToolLens",
        ON_TOOLLENS,
        tuple(lines),
        differences=("The paper has no such table: it repeats Table 1's comparisons on data that is here.",),
    )


def _elsewhere(id: str, numbers: str, caption: str, heads: tuple[str, ...], why: Unavailable) -> Table:
    """Return a table whose experiments this command cannot run."""
    lines = tuple(Line(one.name, why, None, one.source) for one in published_lines(numbers, "ToolGen"))
    return Table(id, "", caption, tuple(Column(head) for head in heads), lines, numbers)


PAPER = Paper(
    key="toolgen",
    title="ToolGen",
    venue="arXiv 2410.03439",
    link="https://arxiv.org/abs/2410.03439",
    published="--retriever toolgen --option preset=published",
    settings=(
        ("base", "Llama-3-8B, all parameters, bf16; 46,985 tools, one new token each"),
        ("memorisation", "49,936 documents, 8 epochs, 1,024 tokens"),
        ("retrieval", "489,702 pairs of request and tool, 1 epoch, 1,024 tokens"),
        ("agent", "183,336 trajectories, 1 epoch, 6,144 tokens"),
        ("optimiser", "peak rate 4e-5 (the released code: 2e-5), cosine, 3 % warm-up; batch 1,024 (the released code)"),
        ("search", "beam 5 under a trie of all ids"),
    ),
    differences=(
        "SmolLM2 with 135 million weights stands in for Llama-3-8B unless its weights are passed.",
        "The epoch is selected on dev; the paper trains to the end.",
        "All gold tools of a request are right answers at once, none against another; the paper has a record for each "
        "pair of request and tool.",
        "The row of a tool's token is the mean of its name's rows, plus a learned map of its document's vector, plus a "
        "free part; the paper's has no map.",
        "Scores are renormalised over what the trie allows, and the search is exact; the paper's log-probabilities are "
        "masked and not renormalised, over beams of 5.",
        "A document is memorised as a whole and by its next three lines; requests and documents are read in "
        "one prompt.",
        "As served: the encoder's cosine is added to the language model's score with a weight chosen on dev; as "
        "published, it is not (similarity=0).",
        "The agent's stage is not part of the retrieval tables: it is trained only where trajectories are given.",
    ),
    tables=(
        _multi_domain(),
        Table(
            "1",
            "in-domain",
            "Retrieval among the tools of one part",
            BY_PART,
            tuple(
                Line(one.name, IN_DOMAIN, None, one.source) for one in published_lines("toolgen-in-domain", "ToolGen")
            ),
            "toolgen-in-domain",
        ),
        _ablation(),
        Table(
            "transfer",
            "",
            "Trained on requests of G1 alone",
            BY_PART[3:],
            tuple(Line(one.name, I1_ONLY, None, one.source) for one in published_lines("toolgen-transfer", "ToolGen")),
            "toolgen-transfer",
        ),
        _on_toollens(),
        _elsewhere(
            "end-to-end",
            "toolgen-end-to-end",
            "Solved requests of StableToolBench (Tables 4, 5, 7 and 9)",
            tuple(f"{measure} {part}" for measure in ("SoPR", "SoWR") for part in ("I1", "I2", "I3", "avg")),
            JUDGED,
        ),
        _elsewhere(
            "unseen",
            "toolgen-unseen",
            "Solved requests for unseen tools and categories",
            ("SoPR I1-Tool", "SoPR I1-Cat", "SoPR I2-Cat", "SoPR avg"),
            JUDGED,
        ),
        _elsewhere("ability", "toolgen-ability", "General ability after training", ("average",), ABILITY),
    ),
)
