"""Towers over made-up scenes: their options, prompts that need no tool, and a dataset whose dev has new tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.retrievers.scenes import scenes
from tests.toys import HashedWords
from toolscout.data.dataset import Dataset
from toolscout.retrievers.colt import Colt
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.tower.options import ColtOptions, MasstoolOptions
from toolscout.retrievers.tower.retriever import TowerRetriever

torch.set_num_threads(1)
CHAT = ["tell me a joke", "write a poem", "who are you", "a song of joy", "how do you feel", "cheer me up"]
QUICK: dict[str, Any] = {"epochs": 2, "batch": 20, "rate": 1e-3, "device": "cpu"}


def masstool(encoder: HashedWords | None = None, **changed: Any) -> Masstool:
    chosen = {"epsilon": 0.4, "neighbours": 6, "hidden": 16}
    return Masstool(MasstoolOptions(**{**QUICK, **chosen, **changed}), encoder or HashedWords())


def colt(encoder: HashedWords | None = None, **changed: Any) -> Colt:
    return Colt(ColtOptions(**{**QUICK, **changed}), encoder or HashedWords())


def write_prompts(folder: Path) -> Path:
    """24 to train on, 12 to calibrate on, one that nobody may read."""
    folder.mkdir(parents=True)
    splits = ["train"] * 24 + ["dev"] * 12 + ["tooldet_test"]
    rows = [
        {"_id": f"p{n}", "text": f"{CHAT[n % 6]} {n}", "split": split, "source": f"s{n % 2}"}
        for n, split in enumerate(splits)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def with_new_tools() -> Dataset:
    """Scenes whose dev also needs tools that nothing trains on, asked for by their descriptions and more words."""
    data = scenes()
    known = {tool_id for gold in data.split("train").gold for tool_id in gold}
    new = [tool for tool in data.tools if tool.id not in known][:8]
    requests, qrels = dict(data.requests), {name: dict(found) for name, found in data.qrels.items()}
    for number, tool in enumerate(new):
        partner = data.split("dev").gold[number][0]
        requests[f"new-{number}"] = f"{data.split('dev').requests[number][1]} {' '.join(tool.description.split()[:2])}"
        qrels["dev"][f"new-{number}"] = (partner, tool.id)
    return Dataset("scenes", data.tools, requests, qrels)


def reopened(made: TowerRetriever, folder: Path) -> TowerRetriever:
    made.save(folder)
    return type(made).load(folder, HashedWords())
