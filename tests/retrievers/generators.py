"""Tiny language models that write tools, over scenes: each is fitted once for all tests, and opened quickly."""

from __future__ import annotations

import atexit
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from tokenizers import pre_tokenizers, trainers

from tests.models import tiny_llama
from tests.retrievers.scenes import scenes
from tests.retrievers.towers import write_prompts
from tests.toys import HashedWords
from toolscout.core.tool import Tool
from toolscout.data.conversations import conversation
from toolscout.data.trajectories import Call, Trajectory, TrajectoryMessage
from toolscout.retrievers.generative.base import GenerativeRetriever
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.toolgen import Toolgen, ToolgenOptions
from toolscout.retrievers.toolweaver import Toolweaver, ToolweaverOptions

QUICK: dict[str, Any] = {"rank": 4, "epochs": 4, "memorise": 0, "batch": 10, "rate": 1e-2, "mix": 0.0, "device": "cpu"}
# By name: what differs from QUICK. Those that no test asks how much they learned are trained for one epoch.
VARIANTS: dict[str, dict[str, Any]] = {
    "toolgen": {"epochs": 8, "memorise": 1, "no_tool": "prompts"},
    "toolgen-sets": {"epochs": 10, "rank": 8, "sets": True, "absent": 0.0},
    "toolgen-hierarchical": {"ids": "hierarchical", "epochs": 14},
    "toolgen-semantic": {"ids": "semantic", "epochs": 1},
    "toolgen-numeric": {"ids": "numeric", "epochs": 1},
    "toolgen-agent": {
        "epochs": 1,
        "trajectories": "trajectories.jsonl",
        "agent_epochs": 60,
        "rehearse": 0.0,
        "rate": 2e-2,
    },
    "toolweaver": {"epochs": 8, "code_steps": 20},
    "toolweaver-sets": {"epochs": 2, "sets": True, "rank": 0, "start": "random", "code_steps": 2, "no_tool": "prompts"},
}

# Those that are ranked on dev after each epoch, which takes longer than the epoch.
JUDGED = ("toolgen", "toolweaver")
# A tool that a conversation calls, and that the catalogue does not have.
STRANGE = Tool("zoo", "feed_lion", "gives the lion its dinner")
# Those that were fitted, as they were left.
LEARNED: dict[str, GenerativeRetriever] = {}


@cache
def home() -> Path:
    made = Path(mkdtemp())
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    write_prompts(made / "prompts")
    rows = [json.dumps(one.to_row()) for one in trajectories()]
    (made / "trajectories.jsonl").write_text("\n".join(rows) + "\n")
    return made


@cache
def base(**changes: Any) -> Path:
    """A tiny Llama whose tokeniser knows the words of scenes."""
    folder = home() / f"base{len(changes)}"
    made, data = tiny_llama.tokenizer(), scenes()
    special, alphabet = list(tiny_llama.MARKUP), pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=640, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    texts = [*tiny_llama.TEXTS, *data.requests.values(), *(tool.document() for tool in data.tools)]
    texts += [turn.content for one in trajectories()[:2] for turn in conversation(one).turns] * 5
    made.train_from_iterator(texts, trainer)
    tiny_llama.tiny_llama(
        folder, **{"vocab_size": 640, "max_position_embeddings": 512, "initializer_range": 0.1, **changes}
    )
    made.save(str(folder / "tokenizer.json"))
    return folder


def made(name: str, encoder: HashedWords | None = None, **changed: Any) -> GenerativeRetriever:
    """One that is not trained yet."""
    options = {"base": str(base()), **QUICK, **VARIANTS[name], **changed}
    for path in ("no_tool", "trajectories"):
        if options.get(path):
            options[path] = str(home() / options[path])
    if name.startswith("toolgen"):
        return Toolgen(ToolgenOptions(**options), encoder or HashedWords())
    return Toolweaver(ToolweaverOptions(**options), encoder or HashedWords())


@cache
def fitted(name: str) -> Path:
    torch = pytest.importorskip("torch", reason="training needs the extra 'train'")
    torch.set_num_threads(1)
    folder = home() / name
    LEARNED[name] = made(name)
    LEARNED[name].fit([TrainingSet(scenes(), dev="dev" if name in JUDGED else "")], folder)
    return folder


def opened(name: str) -> Any:
    """As it was fitted, with the tools of catalogue(60)."""
    kind = Toolgen if name.startswith("toolgen") else Toolweaver
    return kind.load(fitted(name), HashedWords())


def empty(name: str) -> Any:
    """As it was fitted, without any tool."""
    found = opened(name)
    found.remove(found.ids())
    return found


def trajectories() -> list[Trajectory]:
    """The requests of scenes: the first tool of one is called, one is answered at once, one calls a strange tool."""
    data = scenes()
    split, answer = data.split("train"), TrajectoryMessage("assistant", "All is done.")
    used = next(tool for tool in data.tools if tool.id == split.gold[0][0])
    asked = [TrajectoryMessage("user", split.requests[number][1]) for number in (0, 5, 11)]
    called, strange = (
        (request, TrajectoryMessage("assistant", "", (Call(tool.id, {}),)), TrajectoryMessage("tool", "done"), answer)
        for request, tool in ((asked[0], used), (asked[2], STRANGE))
    )
    answered = Trajectory("answered", (used,), (asked[1], answer))
    return [Trajectory("called", (used,), called), answered, Trajectory("strange", (used, STRANGE), strange)]
