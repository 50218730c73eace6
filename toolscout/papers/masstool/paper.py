"""MassTool: tool detection and retrieval together. Its settings, its main table and its ablations.

The published network is `masstool_published`; what this package serves is `masstool`.
"""

from __future__ import annotations

from toolscout.papers.colt import (
    CUT,
    G2_MISSING,
    G3_DIFFERENCES,
    IN_BATCH,
    MINILM,
    NETWORK,
    POOLING,
    SERVED_ENCODER,
    columns,
    served,
    stage_1,
)
from toolscout.papers.masstool.published import DIFFERENCES, KEPT_FAULTS
from toolscout.papers.masstool.published_ablations import SETTINGS
from toolscout.papers.paper import Experiment, Line, Paper, Table, Unavailable

_REWRITING = Unavailable("the rewritten requests of this baseline were not released")
_ABLATED = {
    "full": (),
    "w/o AdaKT": ("transfer=none",),
    "w/o SUIM": ("neighbours=0",),
    "w/o dynamic filtering": ("epsilon=0",),
    "w/o contrastive loss": ("beta=0",),
    "w/o detection loss": ("weight_detection=0",),
    "transfer by addition": ("transfer=addition",),
    "transfer by concatenation": ("transfer=concatenation",),
    "transfer by attention": ("transfer=attention",),
}
# The same variants of masstool, as `toolscout ablate masstool` names them.
_SERVED_NAMES = {
    "full": "full",
    "w/o AdaKT": "without-adakt",
    "w/o SUIM": "without-suim",
    "w/o dynamic filtering": "without-dynamic-filter",
    "w/o contrastive loss": "without-contrastive",
    "w/o detection loss": "without-detection",
    "transfer by addition": "transfer-addition",
    "transfer by concatenation": "transfer-concatenation",
    "transfer by attention": "transfer-attention",
}


def network(dataset: str, encoder: Experiment, name: str, changes: tuple[str, ...] = ()) -> Experiment:
    """Return the published network over an encoder."""
    settings = (*SETTINGS[dataset], *changes)
    return Experiment(name, NETWORK, dataset, settings, prompts=True, encoder=encoder, hours=0.8)


def _full(dataset: str, encoder: str) -> Experiment:
    slug = encoder.lower().replace("-", "")
    return network(dataset, stage_1(dataset, encoder), f"masstool_published-published-{dataset}-{slug}")


def _main(dataset: str, part: str, heads: tuple[str, ...]) -> Table:
    """Return the part of the main table that is about one dataset."""
    lines = []
    for encoder in ("ANCE", "TAS-B"):
        lines.append(Line(f"{encoder}, fine-tuned", stage_1(dataset, encoder), None, "COLT"))
        lines += [Line(f"{name} ({encoder})", _REWRITING, None, "MassTool") for name in ("QTA", "MMRR")]
        lines.append(Line(f"MassTool ({encoder})", _full(dataset, encoder), None, "MassTool"))
    ours = SERVED_ENCODER[dataset]
    lines.append(Line(f"{MINILM}, fine-tuned", stage_1(dataset, MINILM), ours))
    lines.append(Line(f"MassTool ({MINILM})", _full(dataset, MINILM), served(dataset, "masstool", prompts=True)))
    over = network(dataset, ours, f"masstool_published-{ours.name}")
    lines.append(Line(f"MassTool ({MINILM}, stage 1 as served)", over))
    differences = G3_DIFFERENCES if dataset == "toolbench-g3" else ()
    return Table("main", part, f"Retrieval on {part}", columns(*heads), tuple(lines), dataset, differences)


def _ablations(dataset: str, part: str) -> Table:
    """Return the paper's ablations, whose numbers could not be had."""
    encoder, lines = SERVED_ENCODER[dataset], []
    for name, changes in _ABLATED.items():
        slug = _SERVED_NAMES[name]
        one = network(dataset, encoder, f"masstool_published-{encoder.name}" + (f"-{slug}" if changes else ""), changes)
        lines.append(Line(name, one, _ablated(dataset, slug)))
    return Table(
        "ablation",
        part,
        f"MassTool without its parts, and other transfer functions, on {part}",
        columns("R@3", "R@5", "N@3", "N@5", "C@3", "C@5"),
        tuple(lines),
        differences=(
            "The paper's numbers of its ablations could not be had.",
            "As served: the variants of `toolscout ablate masstool`, whose parts dev gives the weight 0 wherever they "
            "do not help; equal numbers mean parts that are off.",
            "Stage 1 is this package's, as served.",
        ),
    )


def _ablated(dataset: str, slug: str) -> Experiment:
    """Return the variant of masstool; its rows are those of `toolscout ablate`."""
    changes = {
        "without-adakt": ("transfer=none",),
        "without-suim": ("neighbours=0",),
        "without-dynamic-filter": ("epsilon=-1",),
        "without-contrastive": ("contrastive=0",),
        "without-detection": ("detection=0",),
    }.get(slug, (slug.replace("-", "=", 1),) if slug.startswith("transfer-") else ())
    name = f"masstool-{SERVED_ENCODER[dataset].name}-ablation-{slug}"
    return Experiment(
        name,
        "masstool",
        dataset,
        changes,
        prompts=True,
        encoder=SERVED_ENCODER[dataset],
        also=(f"{slug}-chosen-*",),
        hours=0.2,
    )


_ALL, _WITHOUT_COMP = ("R@3", "R@5", "N@3", "N@5", "C@3", "C@5"), ("R@3", "R@5", "N@3", "N@5")
PAPER = Paper(
    key="masstool",
    title="MassTool",
    venue="arXiv 2507.00487",
    link="https://arxiv.org/abs/2507.00487",
    published="--retriever masstool --option preset=published (the method masstool_published)",
    settings=(
        ("stage 1", "COLT's fine-tuned encoder: multiple negatives ranking loss, batch 16, 5 epochs, 350 tokens"),
        (
            "stage 2",
            "Adam, batch 2,048, 1 layer, edge dropout 0.2, 10 neighbours, lists of 10, contrastive weight 0.04",
        ),
        ("stage 2 on ToolLens", "rate 1e-3, 200 epochs, temperature 0.1, detection weight 0.1, epsilon 0.82"),
        ("stage 2 on ToolBench G3", "rate 5e-3, 100 epochs, temperature 0.05, detection weight 0.05, epsilon 0.87"),
        ("score", "the sum of six cosines of the request's vectors with the tool's"),
    ),
    differences=(
        f"{MINILM} stands in for the paper's encoders unless their weights are passed.",
        CUT,
        IN_BATCH,
        POOLING,
        *DIFFERENCES,
        *(f"A fault of the released code that is kept: {fault}" for fault in KEPT_FAULTS),
    ),
    tables=(
        _main("toollens", "ToolLens", _ALL),
        Table(
            "main",
            "ToolBench G2",
            "Retrieval on ToolBench G2",
            columns(*_WITHOUT_COMP),
            tuple(
                Line(f"{name} ({encoder})", G2_MISSING, None, "MassTool")
                for encoder in ("ANCE", "TAS-B")
                for name in ("QTA", "MMRR", "MassTool")
            ),
            "toolbench-g2",
        ),
        _main("toolbench-g3", "ToolBench G3", _ALL),
        _ablations("toollens", "ToolLens"),
        _ablations("toolbench-g3", "ToolBench G3"),
    ),
)
