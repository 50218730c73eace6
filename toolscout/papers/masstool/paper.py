"""MassTool: tool detection and retrieval together. Its settings, its main table and its ablations.

The published network is `masstool_published`; what this package serves is `masstool`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from toolscout.papers.colt import (
    CUT,
    G2_MISSING,
    G3_DIFFERENCES,
    IN_BATCH,
    MINILM,
    NETWORK,
    POOLING,
    SERVED_ENCODER,
    colt,
    columns,
    served,
    stage_1,
)
from toolscout.papers.masstool.published import DIFFERENCES, KEPT_FAULTS
from toolscout.papers.masstool.published_ablations import SETTINGS, VARIANTS
from toolscout.papers.paper import Experiment, Line, Paper, Table, Unavailable

_REWRITING = Unavailable("the rewritten requests of this baseline were not released")
# The variants of the published network, by the names of their lines; what each changes is in published_ablations.
_ABLATED = {
    "full": "full",
    "w/o AdaKT": "without-adakt",
    "w/o SUIM": "without-suim",
    "w/o dynamic filtering": "without-dynamic-filter",
    "w/o contrastive loss": "without-contrastive",
    "w/o detection loss": "without-detection",
    "w/o QC-GCN": "without-qc-gcn",
    "transfer by addition": "transfer-addition",
    "transfer by concatenation": "transfer-concatenation",
    "transfer by attention": "transfer-attention",
}
_SENSITIVITY = {
    "full": "full",
    **{f"λ {one}": f"lambda-{one}" for one in ("0.08", "0.2", "0.5", "1")},
    **{f"ε {one}": f"epsilon-{one}" for one in ("0.6", "0.7", "0.8", "0.9", "1")},
    **{f"{one} layers": f"layers-{one}" for one in (2, 3)},
}
_DENSITY = {
    **{f"{share} % of the training requests": f"density-{share / 100:g}" for share in (10, 25, 50, 75)},
    "all training requests": "full",
}
_ALL_TOOLS = {"toollens": "candidates=464", "toolbench-g3": "candidates=1419"}
_ALL, _WITHOUT_COMP = ("R@3", "R@5", "N@3", "N@5", "C@3", "C@5"), ("R@3", "R@5", "N@3", "N@5")
_OFF = (
    "As served: the variants of `toolscout ablate masstool`, whose parts dev gives the weight 0 wherever they do not "
    "help; equal numbers mean parts that are off. Stage 1 is then this package's.",
)
# What rows of `python -m studies.masstool_published` are called behind the name of their variant: the study's id.
_STUDY_ID = "[0-9a-f]" * 16


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


def _variants(id: str, caption: str, dataset: str, part: str, variants: Mapping[str, str]) -> Table:
    """Return a table of variants of the published network, whose numbers in the paper could not be had."""
    compared = id == "ablation"
    return Table(
        id,
        part,
        f"{caption}, on {part}",
        columns(*_ALL),
        tuple(
            Line(name, _variant(dataset, variant), _ablated(dataset, variant) if compared else None)
            for name, variant in variants.items()
        ),
        differences=(
            "The paper's numbers could not be had.",
            "All variants and seeds of the published network are trained over one encoder: stage 1 as published, seed "
            "0.",
            *(_OFF if compared else ()),
            *(G3_DIFFERENCES if dataset == "toolbench-g3" else ()),
        ),
    )


def _variant(dataset: str, variant: str) -> Experiment:
    """Return a variant of the published network; its rows are those of `python -m studies.masstool_published`."""
    changes = tuple(f"{name}={value}" for name, value in VARIANTS[variant].items())
    full = _full(dataset, MINILM)
    named = network(dataset, stage_1(dataset, MINILM), f"{full.name}-{variant}", changes)
    return replace(named, also=(f"{variant}-{_STUDY_ID}",))


def _gain(dataset: str, part: str) -> Table:
    """Return where the paper's gain comes from: stage 1, the modules of stage 2, and lists of ten tools."""
    encoder, colt_network, masstool = stage_1(dataset, MINILM), colt(dataset, MINILM), _full(dataset, MINILM)
    lines = (
        Line("stage 1 alone", encoder, SERVED_ENCODER[dataset]),
        Line("COLT over stage 1", colt_network, served(dataset, "colt")),
        Line("MassTool over stage 1", masstool, served(dataset, "masstool", prompts=True)),
        *(
            Line(
                f"{name} over stage 1, lists of all tools",
                replace(one, name=f"{one.name}-all-tools", settings=(*one.settings, _ALL_TOOLS[dataset])),
            )
            for name, one in (("COLT", colt_network), ("MassTool", masstool))
        ),
    )
    return Table(
        "gain",
        part,
        f"Where the gain comes from, on {part}",
        columns(*_ALL),
        lines,
        differences=(
            "The paper has no such table. COLT's stage 2 trains vectors over graphs; MassTool's has SUIM, AdaKT and "
            "detection besides. Lists have ten tools unless a line says otherwise. Each seed has its own encoder.",
            "As served: every tool that training used competes in stage 1 too.",
            *(G3_DIFFERENCES if dataset == "toolbench-g3" else ()),
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
        "without-qc-gcn": ("layers=0",),
    }.get(slug, (slug.replace("-", "=", 1),) if slug.startswith("transfer-") else ())
    name = f"masstool-{SERVED_ENCODER[dataset].name}-ablation-{slug}"
    rows = "without-graph" if slug == "without-qc-gcn" else slug
    return Experiment(
        name,
        "masstool",
        dataset,
        changes,
        prompts=True,
        encoder=SERVED_ENCODER[dataset],
        also=(f"{rows}-chosen-*",),
        hours=0.2,
    )


_PARTS = {"toollens": "ToolLens", "toolbench-g3": "ToolBench G3"}
_STUDIES = (
    ("ablation", "MassTool without its parts, and other transfer functions", _ABLATED),
    ("sensitivity", "Weight of detection (λ), threshold of the filter (ε), and layers", _SENSITIVITY),
    ("density", "Fewer training requests", _DENSITY),
)
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
        *(_gain(dataset, part) for dataset, part in _PARTS.items()),
        *(
            _variants(id, caption, dataset, part, variants)
            for id, caption, variants in _STUDIES
            for dataset, part in _PARTS.items()
        ),
    ),
)
