"""Writes the recording that `test_recorded_answers.py` holds the code to: `python -m tests.regression.record [NAME …]`.

`python -m tests.regression.record models` trains the tiny models anew, which changes what all of them answer. Run it in
the folder of the project: the models name each other by paths that begin there.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import pre_tokenizers, trainers

from tests.models import tiny_bert, tiny_llama
from tests.regression import answers
from tests.regression.answers import HOME, METHODS, MODELS, Hashed, bundled, words_and_vectors
from tests.retrievers import towers
from toolscout.data.dataset import Dataset
from toolscout.papers.masstool.published import MasstoolPublished, MasstoolPublishedOptions
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.centroid import Centroid
from toolscout.retrievers.colt import Colt
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.memory import Memory
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions
from toolscout.retrievers.toolgen import Toolgen, ToolgenOptions
from toolscout.retrievers.toolweaver import Toolweaver, ToolweaverOptions
from toolscout.retrievers.tower.options import ColtOptions, MasstoolOptions

ROOT = HOME.parent.parent
PLACE = MODELS.relative_to(ROOT)
TINY: dict[str, Any] = {"rank": 4, "memorise": 0, "batch": 10, "rate": 1e-2, "mix": 0.0, "device": "cpu"}


def lessons(few: int | None = None) -> Dataset:
    """The dev split of the bundled catalogue, three quarters to train on; `few`: with the first tools alone."""
    data = bundled()
    tools = data.tools[:few]
    known = {tool.id for tool in tools}
    rows = [(one, tuple(i for i in gold if i in known)) for one, gold in data.qrels["dev"].items()]
    asked = [(one, gold) for one, gold in rows if gold]
    qrels = {"train": dict(asked[: len(asked) * 3 // 4]), "dev": dict(asked[len(asked) * 3 // 4 :])}
    return Dataset("bundled", tools, data.requests, qrels)


def bert() -> Path:
    """A tiny BERT that knows the most frequent words of the bundled catalogue."""
    texts = [*bundled().requests.values(), *(tool.document() for tool in bundled().tools)]
    counted = Counter(word for text in texts for word in re.findall(r"\w+", text))
    tiny_bert.WORDS[4:] = [word for word, _ in counted.most_common(800)]
    tiny_bert.CONFIG |= {"vocab_size": len(tiny_bert.WORDS), "max_position_embeddings": 130}
    return tiny_bert.write_folder(PLACE / "bert", tiny_bert.random_weights())


def llama() -> str:
    made, data = tiny_llama.tokenizer(), lessons(60)
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=list(tiny_llama.MARKUP),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*tiny_llama.TEXTS, *(tool.document() for tool in data.tools)], trainer)
    options = {"vocab_size": 640, "max_position_embeddings": 512, "initializer_range": 0.1}
    tiny_llama.tiny_llama(PLACE / "llama", **options)
    made.save(str(PLACE / "llama" / "tokenizer.json"))
    return str(PLACE / "llama")


def train() -> None:
    """Train one tiny model of each method, all on the CPU."""
    torch.set_num_threads(1)
    shutil.rmtree(MODELS, ignore_errors=True)
    towers.write_prompts(PLACE / "prompts")
    base, prompts = llama(), str(PLACE / "prompts")
    tower = {**towers.QUICK, "no_tool": prompts}
    start = bert()
    dense = DenseOptions(start=str(start), epochs=2, batch=16, rate=1e-3, mix=0.0, patience=0, device="cpu")
    written = {"base": base, **TINY}
    options = {"toolgen": {"epochs": 4, "no_tool": prompts}, "toolgen-sets": {"epochs": 3, "sets": True, "absent": 0.0}}
    options |= {"toolgen-semantic": {"epochs": 2, "ids": "semantic"}}
    made: dict[str, Any] = {
        "masstool": Masstool(MasstoolOptions(**tower, epsilon=0.4, neighbours=6, hidden=16), Hashed()),
        "colt": Colt(ColtOptions(**towers.QUICK), Hashed()),
        "masstool_published": MasstoolPublished(MasstoolPublishedOptions(epochs=1, device="cpu"), Hashed()),
        "memory": Memory(encoder=Hashed()),
        "centroid": Centroid(encoder=Hashed()),
        "hybrid": Hybrid(parts=[Bm25(), Dense(dense)]),
        "toolweaver": Toolweaver(ToolweaverOptions(**written, epochs=4, code_steps=20), Hashed()),
        **{name: Toolgen(ToolgenOptions(**written, **few), Hashed()) for name, few in options.items()},
    }
    for name, retriever in made.items():
        data = lessons(answers.FEW.get(f"{name}-trained", answers.FEW.get(name)))
        retriever.fit([TrainingSet(data)], PLACE / name)
    texts = {"rank": 0, "batch": 5, "rate": 1e-2, "device": "cpu", "max_tokens": 48, "request_words": 20, "epochs": 2}
    rewrite = Rewrite(RewriteOptions(base=base, **texts), [Bm25()])
    rewrite.fit([TrainingSet(lessons(60), dev="")], PLACE / "rewrite")
    shutil.rmtree(MODELS / "bert")
    shutil.rmtree(MODELS / "hybrid" / "1-dense" / "weights")  # what it was trained as; what is served is encoder/


def record(names: Sequence[str]) -> None:
    """Write down what these answer; all of them where none is named."""
    for name in names or [*METHODS, "scout", "scout-default", "toollens", "toolbench"]:
        with TemporaryDirectory() as folder:
            if name == "scout":
                answers.write(name, answers.of_scout(Path(folder), words_and_vectors()))
            elif name == "scout-default":
                answers.write(name, answers.of_scout(Path(folder)))
            elif name in answers.PUBLISHED:
                answers.write(name, answers.published(name, *answers.PUBLISHED[name]))
            else:
                answers.write(name, answers.of_method(name))


if __name__ == "__main__":
    os.chdir(ROOT)
    if sys.argv[1:] == ["models"]:
        train()
    else:
        record(sys.argv[1:])
