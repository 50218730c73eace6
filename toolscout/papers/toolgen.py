"""ToolGen: each tool is a token that a language model writes. Its stages, its tables and its ablations.

Three stages: memorisation (document to token), retrieval (request to token), and agent (whole trajectories). The agent
is run on recorded calls; its tables of solved requests need a judge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolscout.papers.colt import SERVED_ENCODER
from toolscout.papers.paper import (
    NAMES,
    AgentExperiment,
    Column,
    Experiment,
    GenerationExperiment,
    Line,
    NamesExperiment,
    Ours,
    Paper,
    Table,
    Unavailable,
    Weights,
    published_lines,
)
from toolscout.training.encoder_options import Decoding

# ToolBench's test requests come in six files; papers report them as three parts.
PARTS = {
    "G1": ("test_G1_instruction", "test_G1_tool", "test_G1_category"),
    "G2": ("test_G2_instruction", "test_G2_category"),
    "G3": ("test_G3_instruction",),
}
ON_TOOLLENS = tuple(
    Column(head, metric)
    for head, metric in (("N@1", "toolgen_ndcg@1"), ("R@3", "recall@3"), ("R@5", "recall@5"), ("C@5", "comp@5"))
)
TOOLBENCH_ALL = "toolbench-all"
ABOUT_ALL = (
    "the folder toolbench, whose training requests are of G3 alone, with those of G1 and G2 added: toolscout import "
    f"--requests FILE --onto toolbench --out {TOOLBENCH_ALL}, where FILE has ToolBench's or ToolGen's requests"
)
LLAMA = Weights("llama-3-8b", "Llama-3-8B", "base")
EMBEDDING = Weights("text-embedding-3-large", "OpenAI's embedding model", "encoder", "https://HOST/v1?model=NAME")
RETRIEVER = Weights("toolbench-retriever", "ToolBench's ToolRetriever (BERT)", "encoder")
IDS = {"atomic": "", "numeric": "numeric", "hierarchical": "hierarchical", "semantic": "semantic"}
# The splits of the folder toolbench that have requests of G3: their gold tools are the tools of that part.
OF_G3 = ("train", "dev", "g3_test", *PARTS["G3"])
NO_LIST = Unavailable(
    "lists of the tools of G1 and of G2: the training requests that use them are not here; toolscout evaluate --among "
    "FILE ranks only the tools that a file lists"
)
IN_DOMAIN_DIFFERENCES = (
    "The tools of G3 are the gold tools of all requests of G3 that are here; ToolBench's own list has 1,605. Fewer "
    "tools to choose from make ours easier: the numbers are not comparable.",
    "All tools are indexed, and those of G3 are ranked; the paper's baselines index the tools of the part alone, so "
    "that its BM25 weighs words by how many of these have them.",
    "Models are trained on requests of G3 alone. The released code of ToolGen decodes under the trie of all tools, "
    "in-domain too; ours returns tools of G3 only.",
)
# The groups of StableToolBench's requests.
GROUPS = {
    "I1": "test_G1_instruction",
    "I2": "test_G2_instruction",
    "I3": "test_G3_instruction",
    "I1-Tool": "test_G1_tool",
    "I1-Cat": "test_G1_category",
    "I2-Cat": "test_G2_category",
}
STABLE = "stabletoolbench"
OTHER_AGENT = Unavailable(
    "this command runs the agent of a model that it trains, and a chat model that is shown the gold tools; python -m "
    "studies.agent runs other language models behind other retrievers"
)
REFERENCE = AgentExperiment(
    "gpt-3.5-gold-agent",
    "gold",
    STABLE,
    weights=Weights("gpt-3.5", "GPT-3.5, or of another chat model to compare with", "", "https://HOST/v1?model=NAME"),
)
AGENT_DIFFERENCES = (
    "Asked are the requests whose gold tools all have recorded calls, 558 of 765; a call brings the recording with the "
    "same arguments, or the nearest of that tool. The paper's agents call StableToolBench's server.",
    "Tools are named under the trie of all ids, unless a line says otherwise, in retries too: there thought and "
    "arguments are sampled, the tool is the likeliest. The released evaluation decodes without the trie and samples "
    "tools as well.",
    "The system prompt, the documentation of Finish, and what the judge is asked are in this package's words.",
    "Where ToolEval draws lots, for answers that are neither passed nor failed and for equal answers, the judge "
    "compares, or it is a tie. It compares once in each order; ToolEval's code asks twice in the same one.",
)
INVENTED_DIFFERENCES = (
    "The paper has a figure of this and no table.",
    "Free: five sequences by beam search over all tokens, one for an action of the agent. A sequence ends with a whole "
    "id or the end of the turn, or is cut. One that is the id of no tool keeps its place in a ranking.",
    "Where an agent names a tool that there is not, no arguments are asked for, and the observation says so.",
    "Without ids, a model is asked for the name of one tool and shown none. A tool is named by its id or its name, "
    "whatever the spelling of words. It is fine-tuned on the same documents, requests and trajectories, one step of an "
    "agent at a time, and is the baseline here; the paper's are ToolLlama and GPT.",
)
ALONE_DIFFERENCES = (
    "The paper has no such table. As published: the language model alone ranks (similarity=0). As served (+dense): the "
    "cosine of an encoder trained on the same requests is added, with a weight chosen on dev.",
    "This package's settings: adapters of rank 32, rate 0.001, batch 64, one epoch over the documents of tools that "
    "requests use, then 3 to 6 over requests.",
)
ABILITY = Unavailable(
    "the tests of general ability are not here; toolscout reproduce toolweaver --table equal measures perplexity and a "
    "task of your own"
)
I1_ONLY = Unavailable(
    "a folder with training requests of G1 alone: toolscout import --requests FILE --onto FOLDER --out OUT joins "
    "published ones to a BEIR folder, which can be passed to toolscout train and toolscout evaluate"
)


def _published(name: str, changes: tuple[str, ...] = (), weights: Weights | None = LLAMA) -> Experiment:
    """Return the published form on ToolBench, trained on the requests of all parts."""
    settings = ("preset=published", *changes)
    name = f"toolgen-published-{name}"
    return Experiment(name, "toolgen", TOOLBENCH_ALL, settings, weights=weights, hours=1e4, about_data=ABOUT_ALL)


def by_part(*parts: str) -> tuple[Column, ...]:
    """Return columns of parts: NDCG as ToolGen computes it, whose ideal counts no tool that was missed, and true."""
    return tuple(
        Column(f"{part} {head}", metric, PARTS[part])
        for part in parts
        for head, metric in (*((f"N@{k}", f"toolgen_ndcg@{k}") for k in (1, 3, 5)), ("true N@5", "ndcg@5"))
    )


def retrieval_lines(source: str) -> dict[str, Ours]:
    """Return the experiments of baselines that both ToolGen and ToolWeaver report, by the names of their lines."""
    encoder = Experiment("encoder-text-embedding-3-large", "dense", "toolbench", train="", weights=EMBEDDING)
    retriever = Experiment("encoder-toolbench-retriever", "dense", "toolbench", train="", weights=RETRIEVER)
    name = "EmbSim (text-embedding-3-large)" if source == "ToolGen" else "EmbSim"
    return {name: encoder, "ToolRetriever": retriever}


def with_untrained(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Return the lines, with our BM25 and our encoder as served beside the paper's, and the two together."""
    bm25, dense, hybrid = (Experiment("default", name, "toolbench", train="") for name in ("bm25", "dense", "hybrid"))
    ours = {"BM25": bm25, "EmbSim (text-embedding-3-large)": dense, "EmbSim": dense}
    return (*(replace(one, served=ours.get(one.name)) for one in lines), Line("BM25 and EmbSim together", None, hybrid))


def small(method: str, dataset: str, name: str, changes: tuple[str, ...] = (), hours: float = 8.0) -> Experiment:
    """Return the published form with the language model that this package has."""
    settings = ("preset=published", *changes)
    return Experiment(f"{method}-published-{name}", method, dataset, settings, hours=hours)


def on_g3(method: str) -> Experiment:
    """Return the published form with the paper's language model, trained on ToolBench's requests of G3 alone."""
    return replace(small(method, "toolbench", "toolbench-g3-requests-llama", hours=1e4), weights=LLAMA)


def served(method: str, name: str, changes: tuple[str, ...] = ()) -> Experiment:
    """Return a method as this package serves it on ToolLens: fused with the cosines of an encoder trained there."""
    settings = ("epochs=6", *changes)
    return Experiment(f"{name}-toollens", method, "toollens", settings, encoder=SERVED_ENCODER["toollens"], hours=4.0)


_OWN = Line(
    "ToolGen, atomic ids (SmolLM2, trained on G3 alone)",
    small("toolgen", "toolbench", "toolbench-g3-requests", hours=300.0),
    Experiment("toolgen-toolbench", "toolgen", "toolbench", ("epochs=3",), hours=20.0),
)


def _multi_domain() -> Table:
    ours: dict[str, Ours] = {
        **retrieval_lines("ToolGen"),
        **{
            f"ToolGen, {kind} ids": _published(f"toolbench-{kind}", (f"ids={kind}",) if option else ())
            for kind, option in IDS.items()
        },
    }
    lines = (*with_untrained(published_lines("toolbench", "ToolGen", ours)), _OWN)
    return Table("1", "multi-domain", "Retrieval among all tools of ToolBench", by_part(*PARTS), lines, "toolbench")


def in_domain(numbers: str, source: str, ours: dict[str, Ours], own: Line, caption: str) -> tuple[Table, Table]:
    """Return the tables of retrieval among the tools of one part: of G1 and G2, whose tools are not known, and of G3.

    `ours` and `own`: our forms of the paper's lines, and the line of a model that this package can train, both with all
    tools ranked.
    """
    lines = with_untrained(published_lines(numbers, source, ours))
    unknown = tuple(Line(one.name, NO_LIST, None, one.source) for one in lines if one.source)
    return (
        Table("1", "in-domain, G1 and G2", caption, by_part("G1", "G2"), unknown, numbers),
        Table(
            "1",
            "in-domain, G3",
            caption,
            by_part("G3"),
            tuple(
                replace(one, published=_among_g3(one.published), served=_among_g3(one.served)) for one in (*lines, own)
            ),
            numbers,
            IN_DOMAIN_DIFFERENCES,
        ),
    )


def _among_g3(ours: Ours) -> Ours:
    return replace(ours, among=OF_G3) if isinstance(ours, Experiment) else ours


def _ablation() -> Table:
    ours: dict[str, Ours] = {
        "without memorisation": _published("toolbench-without-memorisation", ("memorise=0",)),
        "without retrieval training": _published("toolbench-without-retrieval", ("epochs=0",)),
        "without constraint": generation(_published("toolbench-atomic"), "free"),
    }
    lines = published_lines("toolgen-ablation", "ToolGen", ours)
    return Table("ablation", "", "ToolGen without its stages", by_part(*PARTS), lines, "toolgen-ablation")


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


@dataclass(frozen=True, slots=True)
class TrainedPart:
    """A dataset, or the part of it that tests tools or scenes that training has not seen.

    epochs: over its requests, in this package's own settings.
    encoder: the trained encoder whose cosines are added to what a language model generates.
    """

    title: str
    dataset: str
    train: str
    epochs: int
    encoder: Experiment

    @property
    def split(self) -> str:
        """Return the split that is measured."""
        return "test" if self.train == "train" else f"{self.train}.test"

    @property
    def folder(self) -> str:
        """Return what names of models say for the part."""
        return self.dataset if self.train == "train" else f"{self.dataset}-{self.train}"

    @property
    def own_encoder(self) -> Experiment | None:
        """Return the encoder of documents; None is the package's, which was selected on requests of unseen parts."""
        return None if self.train == "train" else self.encoder


def _encoder(dataset: str, train: str, *settings: str) -> Experiment:
    name = dataset if train == "train" else f"{dataset}-{train}"
    return Experiment(name, "dense", dataset, settings, train=train, hours=6.0)


TRAINED_PARTS = (
    TrainedPart("ToolLens", "toollens", "train", 6, SERVED_ENCODER["toollens"]),
    *(
        TrainedPart(f"ToolLens, {title}", "toollens", train, 3, _encoder("toollens", train, "epochs=3", "rate=0.0001"))
        for title, train in (("unseen tools", "unseen_tool"), ("unseen scenes", "unseen_scene"))
    ),
    TrainedPart("ToolBench-G3", "toolbench-g3", "train", 3, SERVED_ENCODER["toolbench-g3"]),
    TrainedPart("UltraTool", "ultratool", "train", 6, _encoder("ultratool", "train", "epochs=6", "rate=0.0002")),
)


def alone(method: str, part: TrainedPart, name: str = "", changes: tuple[str, ...] = ()) -> Experiment:
    """Return a method in this package's settings with `changes`, whose language model alone ranks."""
    return Experiment(
        "-".join(filter(None, [method, "alone", part.folder, name])),
        method,
        part.dataset,
        (f"epochs={part.epochs}", "similarity=0", "new_bonus=0", *changes),
        train=part.train,
        encoder=part.own_encoder,
        hours=4.0,
    )


def alone_tables(method: str, title: str, published: str, hours: float, more: tuple[Line, ...]) -> tuple[Table, ...]:
    """Return a table for each dataset: what a language model generates alone, and with an encoder's cosines added.

    `published` and `hours`: the name of the published form, with {} for the dataset, and how long it trains. `more`:
    further lines of the first table, that of ToolLens.
    """
    found = []
    for part in TRAINED_PARTS:
        as_published = small(method, part.dataset, published.format(part.folder), hours=hours)
        added = Experiment(
            f"{method}-{part.encoder.name}",
            method,
            part.dataset,
            (f"epochs={part.epochs}",),
            train=part.train,
            encoder=part.encoder,
            hours=4.0,
        )
        lines = (
            Line(f"{title}, the paper's settings", replace(as_published, train=part.train, encoder=part.own_encoder)),
            Line(f"{title}, this package's settings", alone(method, part), added),
            *(more if part is TRAINED_PARTS[0] else ()),
        )
        columns = tuple(replace(column, splits=(part.split,)) for column in ON_TOOLLENS)
        caption = f"What is generated alone, and {method}+dense, on {part.title}"
        found.append(Table("alone", part.title, caption, columns, lines, differences=ALONE_DIFFERENCES))
    return tuple(found)


# The other kinds of ids, in this package's settings.
_ALONE_IDS = tuple(
    Line(
        f"ToolGen, {kind} ids, this package's settings",
        alone("toolgen", TRAINED_PARTS[0], kind, (f"ids={kind}",)),
        served("toolgen", kind, (f"ids={kind}",)),
    )
    for kind, option in IDS.items()
    if option
)


def generation(model: Experiment, decoding: Decoding) -> GenerationExperiment:
    """Return what a trained model generates under the trie of ids, or freely, for requests of its dataset."""
    return GenerationExperiment(
        f"{model.name}-{decoding}",
        model.retriever,
        model.dataset,
        about_data=model.about_data,
        model=model,
        decoding=decoding,
    )


def agent(
    model: Experiment, *, thoughts: bool = True, judged: str = "", decoding: Decoding = "constrained"
) -> AgentExperiment:
    """Return the agent of a trained model, with what a judge measures of it."""
    free = "free" if decoding == "free" else ""
    name = "-".join(filter(None, [model.name, "with-thoughts" if thoughts else "without-thoughts", free, judged]))
    reference = REFERENCE if judged == "sowr" else None
    return AgentExperiment(
        name,
        model.retriever,
        STABLE,
        hours=40.0,
        model=model,
        thoughts=thoughts,
        judged=judged,
        reference=reference,
        decoding=decoding,
    )


def group_columns(measure: str, metric: str, groups: tuple[str, ...], average: bool = True) -> tuple[Column, ...]:
    """Return a column for each group, and one for the mean over all of their requests."""
    found = [Column(f"{measure} {group}", metric, (GROUPS[group],)) for group in groups]
    mean = Column(f"{measure} avg", metric, tuple(GROUPS[group] for group in groups))
    return (*found, mean) if average else tuple(found)


_AGENT = replace(_published("toolbench-atomic-agent"), trajectories=True)
_SMALL_AGENT = replace(small("toolgen", "toolbench-g3", "toolbench-g3-agent", hours=40.0), trajectories=True)
# The same agent with ids of another kind.
_SMALL_AGENTS = {
    kind: replace(_SMALL_AGENT, name=f"{_SMALL_AGENT.name}-{kind}", settings=("preset=published", f"ids={kind}"))
    if option
    else _SMALL_AGENT
    for kind, option in IDS.items()
}
_SAID = {"atomic ids, free": "ToolGen"}  # what the paper's text says
_UNTRAINED = "SmolLM2 as it is, names in plain text"
_WITHOUT_IDS = "SmolLM2 fine-tuned without ids, names in plain text"
_SMALL_NAME = "ToolGen (SmolLM2, trained on ToolBench-G3)"


def _solved(id: str, numbers: str, caption: str, judged: str, groups: tuple[str, ...]) -> Table:
    """Return a table of solved requests: the paper's lines, and the same agent without thoughts and with SmolLM2."""
    measure, llama = {"sopr": "SoPR", "sowr": "SoWR"}[judged], agent(_AGENT, judged=judged)
    ours: dict[str, Ours] = {"ToolGen": llama, "ToolGen, retriever": llama}
    for kind, option in IDS.items():
        trained = replace(_published(f"toolbench-{kind}-agent", (f"ids={kind}",) if option else ()), trajectories=True)
        ours[f"{kind}, indexing, no constraint"] = agent(trained, judged=judged, decoding="free")
    if judged == "sopr":
        ours["GPT-3.5, gold tools"] = replace(REFERENCE, name=f"{REFERENCE.name}-sopr", judged=judged)
    columns = group_columns(measure, judged, groups)
    table = Table(id, measure, caption, columns, (), numbers, AGENT_DIFFERENCES)
    lines = [
        replace(one, published=one.published or OTHER_AGENT)
        for one in published_lines(numbers, "ToolGen", ours)
        if any(table.theirs(one, column) is not None for column in columns)
    ]
    lines += [
        Line("ToolGen, without thoughts", agent(_AGENT, thoughts=False, judged=judged)),
        Line(_SMALL_NAME, agent(_SMALL_AGENT, judged=judged)),
        Line(f"{_SMALL_NAME}, without thoughts", agent(_SMALL_AGENT, thoughts=False, judged=judged)),
    ]
    return replace(table, lines=tuple(lines))


def _called() -> Table:
    """Return what an agent calls, by group: it needs no judge."""
    lines = (
        Line(_SMALL_NAME, agent(_SMALL_AGENT)),
        Line(f"{_SMALL_NAME}, without thoughts", agent(_SMALL_AGENT, thoughts=False)),
    )
    columns = group_columns("called", "all_called", tuple(GROUPS))
    differences = ("The paper has no such table: the share of requests whose gold tools were all called.",)
    caption = "What the agent calls, with thoughts and without"
    return Table("agent", "", caption, columns, lines, differences=(*differences, *AGENT_DIFFERENCES[:3]))


_DECODINGS: tuple[Decoding, ...] = ("constrained", "free")


def _invented_ids() -> Table:
    """Return how often ids are invented for requests, by the kind of ids."""
    trained = {
        kind: small("toolgen", "toollens", f"toollens-{kind}", (f"ids={kind}",) if option else ())
        for kind, option in IDS.items()
    }
    taught = {
        kind: alone("toolgen", TRAINED_PARTS[0], option, (f"ids={kind}",) if option else ())
        for kind, option in IDS.items()
    }
    finetuned = NamesExperiment("names-toollens", NAMES, "toollens", hours=8.0)
    lines = (
        *(
            Line(f"{kind} ids, {one}{way}", generation(model, one))
            for way, models in (("", trained), (", this package's settings", taught))
            for kind, model in models.items()
            for one in _DECODINGS
        ),
        Line(_UNTRAINED, GenerationExperiment("names-untrained", NAMES, "toollens", decoding="free", hours=1.0)),
        Line(
            _WITHOUT_IDS,
            GenerationExperiment("names-toollens-free", NAMES, "toollens", model=finetuned, decoding="free"),
        ),
    )
    columns = (
        Column("N@1", "toolgen_ndcg@1"),
        Column("R@5", "recall@5"),
        Column("invented, first", "invented@1"),
        Column("invented, of 5", "invented"),
    )
    caption = "Ids of no tool, with the constraint and without, on ToolLens"
    return Table("invented", "retrieval", caption, columns, lines, differences=INVENTED_DIFFERENCES)


def _invented_tools() -> Table:
    """Return how often the agent names a tool that there is not, by the kind of ids."""
    acting = NamesExperiment("names-toolbench-g3-agent", NAMES, "toolbench-g3", trajectories=True, hours=40.0)
    lines = (
        *(
            Line(name := f"{kind} ids, {one}", agent(m, decoding=one), source=_SAID.get(name, ""))
            for kind, m in _SMALL_AGENTS.items()
            for one in _DECODINGS
        ),
        Line(_UNTRAINED, AgentExperiment("names-untrained-agent", NAMES, STABLE, hours=4.0)),
        Line(_WITHOUT_IDS, AgentExperiment("names-toolbench-g3-agent-replay", NAMES, STABLE, model=acting, hours=4.0)),
    )
    every = tuple(GROUPS.values())
    columns = (*group_columns("invented", "invented", tuple(GROUPS)), Column("called avg", "all_called", every))
    caption = "Tools that the agent names and that there are not, with the constraint and without"
    differences = (*INVENTED_DIFFERENCES, *AGENT_DIFFERENCES[:3])
    return Table("invented", "agent", caption, columns, lines, "toolgen-invented", differences)


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
        ("agent", "183,336 trajectories, 1 epoch, 6,144 tokens; at most 16 turns, retried where it gives up"),
        ("judging", "SoPR: the mean of three judgements (solved 1, unsure 0.5); SoWR: wins against GPT-3.5"),
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
        "As served (toolgen+dense): the encoder's cosine is added to the language model's score with a weight "
        "chosen on dev; as published, it is not (similarity=0).",
        "The agent's stage is not part of the retrieval tables: it is trained only where trajectories are given.",
    ),
    tables=(
        _multi_domain(),
        *in_domain(
            "toolgen-in-domain",
            "ToolGen",
            {**retrieval_lines("ToolGen"), "ToolGen": on_g3("toolgen")},
            _OWN,
            "Retrieval among the tools of one part",
        ),
        _ablation(),
        Table(
            "transfer",
            "",
            "Trained on requests of G1 alone",
            by_part("G2", "G3"),
            tuple(Line(one.name, I1_ONLY, None, one.source) for one in published_lines("toolgen-transfer", "ToolGen")),
            "toolgen-transfer",
        ),
        _on_toollens(),
        *alone_tables("toolgen", "ToolGen", "{}-atomic", hours=8.0, more=_ALONE_IDS),
        *(
            _solved(
                "end-to-end",
                "toolgen-end-to-end",
                "Solved requests of StableToolBench (Tables 4, 5, 7 and 9)",
                judged,
                ("I1", "I2", "I3"),
            )
            for judged in ("sopr", "sowr")
        ),
        _solved(
            "unseen",
            "toolgen-unseen",
            "Solved requests for unseen tools and categories",
            "sopr",
            ("I1-Tool", "I1-Cat", "I2-Cat"),
        ),
        _called(),
        _invented_ids(),
        _invented_tools(),
        _elsewhere("ability", "toolgen-ability", "General ability after training", ("average",), ABILITY),
    ),
)
