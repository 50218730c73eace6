"""Has a language model write requests for catalogues that have none: `written/kept-NAME.jsonl.gz`, [text, tool ids].

SmolLM2 learns to write from the requests of three permissively licensed sets, and writes for the documents of
ToolBench, of MCP servers and of OpenAPI descriptions. A request is kept where the published encoder finds its tool
among the first 20, and where the filters of `toolscout synth` let it through.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from recipes.default_encoder.texts import WRITTEN, catalogue
from toolscout.models.encoders.opening import open_encoder
from toolscout.retrievers import training_setup
from toolscout.retrievers.dense import Dense
from toolscout.synth.inputs import SynthSource
from toolscout.synth.options import SynthOptions
from toolscout.synth.writer_training import train_synth
from toolscout.synth.writing import RequestWriter, synthesise

_PER_TOOL = {"toolbench": 2, "mcp": 2, "openapi": 1}


def write_requests(work: Path) -> None:
    """Train the writer, and write for each catalogue; what is there already is kept."""
    folder = work / "written"
    folder.mkdir(parents=True, exist_ok=True)
    writer = folder / "writer"
    if not (writer / "generator.json").exists():
        learned_from = ["ultratool", "sealtools:dev:", str(work / "pool" / "calls")]
        train_synth(training_setup.training_sets(learned_from), writer)
    for name in WRITTEN:
        out = folder / f"kept-{name}.jsonl.gz"
        if not out.exists():
            _write_for(name, RequestWriter.open(str(writer)), out)


def _write_for(name: str, writer: RequestWriter, out: Path) -> None:
    source = SynthSource(name, catalogue(name))
    finder = Dense(encoder=open_encoder("raw"))
    finder.add(source.tools)
    partial = out.with_suffix(".partial")
    options = SynthOptions(per_tool=_PER_TOOL[name], round_trip=20)
    made = synthesise(source, writer, options, retriever=finder, partial=partial)
    with gzip.open(out, "wt", encoding="utf-8") as file:
        for one in made.requests:
            file.write(json.dumps([one.text, list(one.tools)], ensure_ascii=False) + "\n")
    partial.unlink(missing_ok=True)
