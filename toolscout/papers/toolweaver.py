"""ToolWeaver: each tool is a short code, learned from documents and co-use. Its stages, tables and ablations.

Codes come from a residual quantiser; a language model then learns to write them, in two stages: retrieval and
trajectories. There is no memorisation.
"""

from __future__ import annotations

from dataclasses import replace

from toolscout.papers.paper import (
    Column,
    Experiment,
    LanguageExperiment,
    Line,
    Ours,
    Paper,
    Table,
    Weights,
    published_lines,
)
from toolscout.papers.toolgen import (
    ABILITY,
    ABOUT_ALL,
    AGENT_DIFFERENCES,
    GROUPS,
    LLAMA,
    ON_TOOLLENS,
    OTHER_AGENT,
    PARTS,
    TOOLBENCH_ALL,
    TRAINED_PARTS,
    agent,
    alone,
    alone_tables,
    by_part,
    group_columns,
    in_domain,
    on_g3,
    retrieval_lines,
    served,
    small,
    with_untrained,
)

_QWEN = {size: Weights(f"qwen-2.5-{size.lower()}", f"Qwen-2.5 {size}", "base") for size in ("1.5B", "3B", "7B", "14B")}


def _published(name: str, weights: Weights, method: str = "toolweaver", changes: tuple[str, ...] = ()) -> Experiment:
    """Return a published form on ToolBench, trained on the requests of all parts."""
    settings = ("preset=published", *changes)
    name = f"{method}-published-{name}"
    return Experiment(name, method, TOOLBENCH_ALL, settings, weights=weights, hours=1e4, about_data=ABOUT_ALL)


def _small(name: str, changes: tuple[str, ...] = ()) -> Experiment:
    """Return the published form on ToolLens, with the language model that this package has."""
    return small("toolweaver", "toollens", name, changes, hours=20.0)


_OWN = Line(
    "ToolWeaver (SmolLM2, trained on G3 alone)",
    small("toolweaver", "toolbench", "toolbench-g3-requests", hours=100.0),
    Experiment("toolweaver-toolbench", "toolweaver", "toolbench", ("epochs=3",), hours=20.0),
)


def _multi_domain() -> Table:
    ids = {
        f"{kind} ids": _published(f"toolbench-{option}-5-epochs", LLAMA, "toolgen", (f"ids={option}", "epochs=5"))
        for kind, option in (("Numerical", "numeric"), ("Hierarchical", "hierarchical"), ("Semantic", "semantic"))
    }
    ours: dict[str, Ours] = {
        **retrieval_lines("ToolWeaver"),
        **ids,
        "ToolGen (public checkpoint)": _published("toolbench-atomic", LLAMA, "toolgen"),
        "ToolWeaver": _published("toolbench", LLAMA),
    }
    lines = (*with_untrained(published_lines("toolbench", "ToolWeaver", ours)), _OWN)
    caption = "Retrieval among all tools of ToolBench (Tables 1 and 4)"
    return Table("1", "multi-domain", caption, by_part(*PARTS), lines, "toolbench")


def _qwen() -> Table:
    ours: dict[str, Ours] = {}
    for size, weights in _QWEN.items():
        ours[f"ToolGen (Qwen-2.5 {size})"] = _published(f"toolbench-{weights.name}", weights, "toolgen")
        ours[f"ToolWeaver (Qwen-2.5 {size})"] = _published(f"toolbench-{weights.name}", weights)
    lines = published_lines("toolbench", "ToolWeaver, Qwen", ours)
    columns = tuple(column for column in by_part(*PARTS) if not column.head.endswith("@3"))
    return Table("qwen", "", "Qwen-2.5 of four sizes", columns, lines, "toolbench")


def _on_toollens() -> Table:
    """Return the paper's comparisons on data that is here: with and without co-use, and other starts."""
    lines = (
        Line("ToolWeaver", _small("toollens"), served("toolweaver", "toolweaver")),
        Line(
            "without co-use",
            _small("toollens-without-co-use", ("collaborative=0",)),
            served("toolweaver", "meaning", ("collaborative=0",)),
        ),
        Line(
            "without semantic codes",
            _small("toollens-random-codes", ("code_source=random",)),
            served("toolweaver", "random-codes", ("code_source=random",)),
        ),
        Line("without Sinkhorn-Knopp", _small("toollens-without-sinkhorn", ("sinkhorn=0",))),
        Line(
            "token rows that start at random",
            _small("toollens"),
            served("toolweaver", "random", ("start=random",)),
        ),
        Line(
            "token rows that start from codebooks",
            _small("toollens-codebooks", ("start=codebooks",)),
            served("toolweaver", "toolweaver"),
        ),
        *(Line(f"{codes} codes a level", _small(f"toollens-{codes}", (f"codes={codes}",))) for codes in (512, 2048)),
        *(Line(f"{levels} levels", _small(f"toollens-l{levels}", (f"levels={levels}",))) for levels in (3, 4)),
    )
    return Table(
        "toollens",
        "",
        "Co-use, starts, and sizes of codes, on ToolLens",
        ON_TOOLLENS,
        lines,
        differences=(
            "The paper has no such table: it repeats the paper's ablations on data that is here.",
            "Without semantic codes: the learned codes are dealt out at random.",
        ),
    )


# Other codes, in this package's settings.
_ALONE_CODES = (
    Line(
        "without co-use, this package's settings",
        alone("toolweaver", TRAINED_PARTS[0], "without-co-use", ("collaborative=0",)),
        served("toolweaver", "meaning", ("collaborative=0",)),
    ),
    Line(
        "without semantic codes, this package's settings",
        alone("toolweaver", TRAINED_PARTS[0], "random-codes", ("code_source=random",)),
    ),
)


def _solved(measure: str, judged: str) -> Table:
    """Return what a judge says of solved requests, by group."""
    weaver = replace(_published("toolbench-agent", LLAMA), trajectories=True)
    toolgen = replace(_published("toolbench-atomic-agent", LLAMA, "toolgen"), trajectories=True)
    ours: dict[str, Ours] = {"ToolWeaver": agent(weaver, judged=judged), "ToolGen": agent(toolgen, judged=judged)}
    lines = published_lines("toolweaver-end-to-end", "ToolWeaver", ours)
    return Table(
        "2",
        measure,
        "Solved requests of StableToolBench (Tables 2 and 5)",
        group_columns(measure, judged, tuple(GROUPS), average=False),
        tuple(replace(one, published=one.published or OTHER_AGENT) for one in lines),
        "toolweaver-end-to-end",
        (*AGENT_DIFFERENCES, "Win rates compare with the chat model that is passed; the paper's with GPT-4o-mini."),
    )


# Both methods learn from the same texts, for as many epochs and in steps of the same size: ToolWeaver's own numbers.
_EQUAL = ("memorise=0", "epochs=5", "agent_epochs=2", "batch=64", "request_tokens=1024")
_EQUALLY_TRAINED = {
    name: replace(small(method, "toolbench-g3", "toolbench-g3-equal", _EQUAL, hours=80.0), trajectories=True)
    for name, method in (("ToolGen", "toolgen"), ("ToolWeaver", "toolweaver"))
}
_EQUAL_DIFFERENCES = (
    "The paper has no such table: it compares with a ToolGen that was trained for fewer epochs.",
    "Trained equally: on ToolBench-G3 and the trajectories, no memorisation, 5 epochs over requests and 2 over "
    "trajectories, batch 64, all parameters of SmolLM2, rate 4e-5.",
)


def _equal() -> tuple[Table, ...]:
    """Return both methods after equal training: what they find and what their agents do."""
    on_g3 = (Column("N@1", "toolgen_ndcg@1"), Column("R@5", "recall@5"), Column("C@5", "comp@5"))
    agents = (*AGENT_DIFFERENCES[:3], *_EQUAL_DIFFERENCES)
    found = [
        Table(
            "equal",
            "retrieval",
            "Both methods after equal training: requests of ToolBench-G3",
            on_g3,
            tuple(Line(name, model) for name, model in _EQUALLY_TRAINED.items()),
            differences=_EQUAL_DIFFERENCES,
        )
    ]
    for measure, metric, judged, about in (
        ("called", "all_called", "", "requests whose gold tools were all called"),
        ("SoPR", "sopr", "sopr", "solved requests of StableToolBench"),
        ("SoWR", "sowr", "sowr", "requests of StableToolBench that are solved better"),
    ):
        lines = tuple(Line(name, agent(model, judged=judged)) for name, model in _EQUALLY_TRAINED.items())
        columns, part = group_columns(measure, metric, tuple(GROUPS)), measure if judged else "agent"
        caption = f"Both methods after equal training: {about}"
        found.append(Table("equal", part, caption, columns, lines, differences=agents))
    return tuple(found)


def _language() -> tuple[Table, Table]:
    """Return what language both methods keep after equal training, beside SmolLM2 as it is."""

    def lines(name: str, dataset: str, *, task: bool) -> tuple[Line, ...]:
        base = LanguageExperiment(f"smollm2-{name}", "smollm2", dataset, hours=0.2, task=task)
        trained = [
            Line(
                method,
                LanguageExperiment(f"{model.name}-{name}", model.retriever, dataset, hours=0.2, model=model, task=task),
            )
            for method, model in _EQUALLY_TRAINED.items()
        ]
        return (Line("SmolLM2 as it is", base), *trained)

    return (
        Table(
            "equal",
            "perplexity",
            "Both methods after equal training: how well prompts that need no tool are predicted",
            (
                Column("perplexity", "perplexity", percent=False),
                Column("perplexity among words", "perplexity_words", percent=False),
            ),
            lines("perplexity", "no_tool", task=False),
            differences=(
                *_EQUAL_DIFFERENCES,
                "The texts are prompts of the folder no_tool, split test; the paper's are WikiText-2. Among words: the "
                "tokens that were added for tools are left out of the softmax.",
            ),
        ),
        Table(
            "equal",
            "task",
            "Both methods after equal training: a task of labelled texts, passed with --task",
            (Column("accuracy", "task_accuracy"),),
            lines("task", "labelled-texts", task=True),
            differences=(
                *_EQUAL_DIFFERENCES,
                "The label that the model takes for the likeliest behind the text, without examples; the paper has six "
                "other tests.",
            ),
        ),
    )


PAPER = Paper(
    key="toolweaver",
    title="ToolWeaver",
    venue="arXiv 2601.21947",
    link="https://arxiv.org/abs/2601.21947",
    published="--retriever toolweaver --option preset=published",
    settings=(
        ("codes", "2 levels of 1,024 codes with 64 numbers each, beta 0.25, co-use 1.0, Sinkhorn-Knopp 0.01"),
        ("learning codes", "AdamW, rate 1e-5, batch 5,096, up to 5,000 epochs, over all-mpnet-base-v2's vectors"),
        ("base", "Llama-3-8B, all parameters; token rows start at random"),
        ("retrieval", "489,702 pairs of request and tool, 5 epochs"),
        ("trajectories", "183,336, 2 epochs"),
        ("optimiser", "rate 4e-5, cosine, 3 % warm-up, 6,144 tokens"),
    ),
    differences=(
        "SmolLM2 with 135 million weights stands in for Llama-3-8B unless its weights are passed.",
        "Documents are encoded by this package's encoder, not by all-mpnet-base-v2.",
        "The loss of co-use is the paper's, over pairs that are used together, divided by the number of tools; as "
        "served it acts on the chance that two tools share their first codes, so that it moves assignments.",
        "Sinkhorn-Knopp makes 30 rounds, the released code 50.",
        "Codes are unique for certain; the released code leaves collisions, a bug that is not copied.",
        "Codes are learned in 50,000 steps of up to 4,096 tools; the paper has up to 5,000 epochs of 10 "
        "steps of 5,096.",
        "The epoch is selected on dev; the paper trains to the end.",
        "The batch of the language model is this package's, 64: the paper names none.",
        "All gold tools of a request are right answers at once; the paper has a record for each pair.",
        "Token rows get a learned map of their codebook vectors besides; the paper's have none.",
        "As served (toolweaver+dense): the encoder's cosine is added to the language model's score with a weight "
        "chosen on dev; as published, it is not (similarity=0).",
        "The paper trains ToolWeaver on retrieval for five epochs and compares with a ToolGen trained for one; each "
        "published form here has the epochs of its own paper, but for the table equal.",
    ),
    tables=(
        _multi_domain(),
        *in_domain(
            "toolweaver-in-domain",
            "ToolWeaver",
            {**retrieval_lines("ToolWeaver"), "ToolGen": on_g3("toolgen"), "ToolWeaver": on_g3("toolweaver")},
            _OWN,
            "Retrieval among the tools of one part (Tables 1 and 4)",
        ),
        _qwen(),
        _on_toollens(),
        *alone_tables("toolweaver", "ToolWeaver", "{}", hours=20.0, more=_ALONE_CODES),
        _solved("SoPR", "sopr"),
        _solved("SoWR", "sowr"),
        *_equal(),
        *_language(),
        Table(
            "ability",
            "",
            "General ability after training",
            tuple(Column(head) for head in ("base", "ToolWeaver", "ToolGen")),
            tuple(
                Line(one.name, ABILITY, None, one.source) for one in published_lines("toolweaver-ability", "ToolWeaver")
            ),
            "toolweaver-ability",
        ),
    ),
)
