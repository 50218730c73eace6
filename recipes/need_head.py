"""Trains the need head of the default encoder on permissively licensed texts: python -m recipes.need_head POOL

POOL is the folder that recipes/default_model_data.py wrote; $TOOLSCOUT_DATA holds ultratool, sealtools and no_tool, and
to measure on toollens, simpletoolquestions and toolbench-g3. Writes toolscout/default_model/need.npz, adds what the
head has seen to trained_on.json, and shows how it does on dev. TextVectors are kept beside POOL, in need/.

Every source is left out once, and the head trained without it is asked about it: that is what the forecast is worth for
a style never seen. The calibration is fitted to those answers, not to answers about styles that were trained on.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from recipes import default_model_data, need_texts
from toolscout.core.arrays import Floats
from toolscout.data import metrics
from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.locate import find_dataset
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.need_head import NeedHead
from toolscout.retrievers.provenance import SeenSplit, TrainedOn
from toolscout.search.tool_need import NeedOptions
from toolscout.training.need_head import DetectionOptions, Examples, learn, platt

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "toolscout"
OUT = PACKAGE / "default_model"
LICENSED = {  # sources of no_tool that may be used for anything, all MIT or Apache-2.0
    *("hh_harmless_test", "GPTeacher_roleplay", "mt_bench_101", "arena_hard_v2", "arena_hard_v0.1", "arena-bench-v1"),
    *("IFEval", "self_instruct_user", "mt_bench"),
}
UNSEEN = ("TopicalChat_opening", "clinc150_oos")
MEASURED = ("toollens", "toolbench-g3", "simpletoolquestions")
OPTIONS = DetectionOptions(hidden=128, dropout=0.4, epochs=20, rate=0.005, batch=256, smoothing=0.2)
TASKS, DEV_TASKS, MOST_MEASURED, DEV_SHARE = 3000, 300, 485, 0.2
THRESHOLDS = (0.1, 0.2, 0.3, 0.5)
MARK = "need: "
Texts = dict[str, list[str]]


class TextsBySource(NamedTuple):
    """Texts by source: those that need a tool, those that do not."""

    needed: Texts
    unneeded: Texts


class TextVectors:
    """Vectors of texts, kept in a folder."""

    def __init__(self, folder: Path) -> None:
        """Open the default encoder."""
        self.encoder = Encoder.load(OUT)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, texts: Sequence[str]) -> Floats:
        """One row for each text."""
        known = hashlib.blake2b("\0".join([self.encoder.fingerprint, *texts]).encode(errors="replace"), digest_size=12)
        path = self._folder / f"{known.hexdigest()}.npy"
        if not path.is_file():
            np.save(path, self.encoder.encode(texts))
        vectors: Floats = np.load(path)
        return vectors

    def examples(self, texts: TextsBySource) -> Examples:
        """What can be trained on."""
        needed, unneeded = ({name: self.of(lines) for name, lines in side.items()} for side in texts)
        return Examples(needed, unneeded, *texts)


def requests(folder: Path, split: str) -> list[str]:
    """The requests of a split that have gold."""
    return [text for _, text in Dataset.load(folder, [split]).split(split).requests]


def prompts(split: str, sources: set[str]) -> Texts:
    """The prompts of some sources that need no tool."""
    found: Texts = {}
    for prompt in read_prompts(Path(os.environ["TOOLSCOUT_DATA"]) / "no_tool", split):
        if prompt.source in sources:
            found.setdefault(prompt.source, []).append(prompt.text)
    return found


def held_out() -> set[str]:
    """Digests of what need is measured on: prompts of test splits, and the bundled pairs."""
    folder = Path(os.environ["TOOLSCOUT_DATA"]) / "no_tool"
    texts = [prompt.text for split in ("test", "tooldet_test") for prompt in read_prompts(folder, split)]
    pairs = map(json.loads, (PACKAGE / "bundled" / "need_pairs.jsonl").read_text(encoding="utf-8").splitlines())
    return {request_digest(text) for text in [*texts, *(pair["text"] for pair in pairs)]}


def lines(path: Path) -> list[str]:
    """The lines of a file that hold something which is measured on nowhere."""
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    measured = held_out()
    return [line for line in kept if request_digest(line) not in measured]


def cut(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Train and dev of a set that has no dev split of its own."""
    dev = [text for text in texts if default_model_data.hashed(text) < DEV_SHARE]
    return [text for text in texts if text not in set(dev)], dev


def gathered(home: Path) -> tuple[TextsBySource, TextsBySource]:
    """Train and dev: published requests and prompts, and our own sentences."""
    rng = np.random.default_rng(0)
    train, dev = TextsBySource({}, prompts("train", LICENSED)), TextsBySource({}, prompts("dev", LICENSED))
    for name, folder in (("ultratool", find_dataset("ultratool")), ("calls", home / "calls")):
        for split, side in (("train", train.needed), ("dev", dev.needed)):
            side[name] = [text for text in requests(folder, split) if need_texts.stands_alone(text)]
    own = {
        "sealtools": (requests(find_dataset("sealtools"), "dev"), []),
        "written": (
            lines(PACKAGE / "search" / "background.txt") + lines(HERE / "need_asked.txt"),
            lines(HERE / "need_talk.txt"),
        ),
        "everyday": need_texts.everyday(rng),
    }
    for split, texts, most in (("train", train, TASKS), ("dev", dev, DEV_TASKS)):
        described = requests(home / "mcp", split) + requests(home / "openapi", split)
        known = need_texts.tasks(described)
        chosen = [known[i] for i in sorted(rng.permutation(len(known))[:most].tolist())]
        texts.needed["tools"], texts.unneeded["tools"] = need_texts.about_tools(chosen, rng)
    for name, sides in own.items():
        for number, sentences in enumerate(sides):
            if sentences:
                train[number][name], dev[number][name] = cut(sentences)
    return train, dev


def without(examples: Examples, needed: str, unneeded: str) -> Examples:
    """The examples with one source of each class left out."""
    left_out = {"needed": needed, "needed_texts": needed, "unneeded": unneeded, "unneeded_texts": unneeded}
    kept = {
        side: {name: rows for name, rows in getattr(examples, side).items() if name != source}
        for side, source in left_out.items()
    }
    return Examples(**kept)


def taught(train: Examples, dev: Examples, encoder: str) -> NeedHead:
    """A head that is not calibrated yet."""
    with tempfile.TemporaryDirectory() as folder:
        head, _ = learn(train, dev, encoder, Path(folder) / "training", OPTIONS)
    return replace(head, scale=1.0, shift=0.0)


def left_out(train: Examples, dev: Examples, encoder: str) -> tuple[Mapping[str, NDArray[np.float64]], ...]:
    """What heads that never saw a source say of its dev rows: by source, of both classes."""
    said: tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]] = ({}, {})
    for number in range(max(len(dev.needed), len(dev.unneeded))):
        names = [list(side)[number % len(side)] for side in (dev.needed, dev.unneeded)]
        head = taught(without(train, *names), without(dev, *names), encoder)
        sides = ((dev.needed, dev.needed_texts), (dev.unneeded, dev.unneeded_texts))
        for known, (rows, texts), name in zip(said, sides, names, strict=True):
            known.setdefault(name, head.logits(rows[name], texts[name]))
    return said


def calibrated(head: NeedHead, said: Sequence[Mapping[str, NDArray[np.float64]]]) -> NeedHead:
    """Scale and shift fitted to answers about sources that were left out."""
    rows = Examples(*({name: values[:, None].astype(np.float32) for name, values in side.items()} for side in said))
    scale, shift = platt(rows.vectors()[:, 0].astype(np.float64), rows.labels(), rows.weights())
    return replace(head, scale=scale, shift=shift)


def chance(head: NeedHead, said: NDArray[np.float64]) -> Floats:
    """Calibrated as the head is."""
    return (1 / (1 + np.exp(-(head.scale * said + head.shift)))).astype(np.float32)


def share(chances: Floats, threshold: float) -> str:
    """How many are taken to need a tool."""
    return f"{float(np.mean(chances >= threshold)):.3f}"


def show(console: Console, title: str, needed: Mapping[str, Floats], unneeded: Mapping[str, Floats]) -> None:
    """AUROC of each set that needs tools against all that do not, and what passes at some thresholds."""
    table = Table(title=title)
    for header in ("set", "needs a tool", "rows", "AUROC", *(f"passes {least}" for least in THRESHOLDS)):
        table.add_column(header)
    for side, others, says in ((needed, unneeded, "yes"), (unneeded, needed, "no")):
        against = np.concatenate(list(others.values()))
        for name, chances in side.items():
            labels = np.repeat([side is needed, side is not needed], [len(chances), len(against)])
            area = metrics.auroc(labels, np.concatenate([chances, against]))
            table.add_row(name, says, str(len(chances)), f"{area:.3f}", *(share(chances, one) for one in THRESHOLDS))
    console.print(table)


def unseen() -> tuple[Texts, Texts]:
    """Dev texts of sets that nothing was trained on."""
    rng = np.random.default_rng(0)
    needed = {name: need_texts.thinned(requests(find_dataset(name), "dev"), MOST_MEASURED, rng) for name in MEASURED}
    bundled = Dataset.load(find_dataset("bundled"), ["dev"])
    asked = bundled.split("dev").requests + bundled.goldless("dev")
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for request_id, text in asked:
        kinds[bundled.kind(request_id) != "no_tool"].append(text)
    return needed | {"bundled": kinds[True]}, prompts("dev", set(UNSEEN)) | {"bundled": kinds[False]}


def remember(train: TextsBySource, dev: TextsBySource) -> None:
    """Add the digests of all that the head was trained, calibrated or chosen on to what the encoder has seen."""
    known = TrainedOn.load(OUT)
    chosen = prompts("dev", set(UNSEEN))
    sets: list[tuple[str, Literal["train", "dev"], Texts]] = [
        *(("train", "train", side) for side in train),
        *(("dev", "dev", side) for side in (*dev, chosen)),
    ]
    splits = []
    for split, role, side in sets:
        for name, texts in side.items():
            digests = frozenset(map(request_digest, texts))
            digest = hashlib.blake2b("".join(sorted(digests)).encode(), digest_size=16).hexdigest()
            splits.append(SeenSplit(MARK + name, digest, split, role, digests))
    kept = tuple(one for one in known.splits if not one.dataset.startswith(MARK))
    replace(known, splits=kept + tuple(splits)).save(OUT)


def main(home: Path) -> None:
    """Train, calibrate, keep, and show."""
    console = Console(width=150)
    vectors = TextVectors(home.parent / "need")
    texts = gathered(home)
    for name, side in zip(("needed", "unneeded"), texts[0], strict=True):
        console.print(name, {source: len(rows) for source, rows in side.items()})
    train, dev = (vectors.examples(one) for one in texts)
    said = left_out(train, dev, vectors.encoder.fingerprint)
    head = calibrated(taught(train, dev, vectors.encoder.fingerprint), said)
    head.save(OUT)
    remember(*texts)
    console.print(f"scale={head.scale:.3f}, shift={head.shift:.3f}, threshold={NeedOptions().threshold}")
    chances = [{name: chance(head, values) for name, values in side.items()} for side in said]
    show(console, "each source by a head that was trained without it, dev", *chances)
    needed, unneeded = (
        {name: head.probabilities(vectors.of(texts), texts) for name, texts in side.items()} for side in unseen()
    )
    show(console, "sets that nothing was trained on, dev", needed, unneeded)
    show(console, "bundled, dev", {"bundled": needed["bundled"]}, {"bundled": unneeded["bundled"]})


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.environ.get("TOOLSCOUT_DATA"):
        sys.exit("python -m recipes.need_head POOL, with the folder of datasets in TOOLSCOUT_DATA")
    main(Path(sys.argv[1]))
