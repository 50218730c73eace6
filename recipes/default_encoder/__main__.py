"""Runs the stages of the recipe: python -m recipes.default_encoder STAGE… [--work DIR] [--seeds N…]."""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from recipes.default_encoder.bi_encoder import EncoderTraining, ScoredLists, train_encoder
from recipes.default_encoder.cross_encoder import (
    CrossEncoder,
    CrossEncoderTraining,
    score_lists,
    train_cross_encoder,
)
from recipes.default_encoder.imitation import ImitationTraining, Wanted, imitate
from recipes.default_encoder.measures import Found, measure, measure_reranked, table_line
from recipes.default_encoder.network import (
    DEVICE,
    Texts,
    TokenisedSet,
    Weights,
    bert,
    combined,
    embed_all,
    mean_of,
    mixed,
    near_misses,
    read_weights,
    with_new_tokens,
    write_weights,
)
from recipes.default_encoder.rows import MEASURES, measure_row

PUBLISHED = "minilm.safetensors"
_REQUEST_WIDTH, _DEV_REQUEST_WIDTH, _DOCUMENT_WIDTH = 62, 126, 94
_MISSES, _LISTS, _LIST = 40, 1500, 16
_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
_FEW_PAIRS = 100
_PUBLISHED_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
_ENGLISH_SHARES = (0.0, 0.2, 0.4, 0.6)
_ENGLISH_LOSS = 0.005
# Two kinds of encoder are averaged. One goes on from the first encoder and reads all sets, small ones often; the other
# goes further from the published one and reads sets of tools and APIs, each as often as it has requests.
_KINDS = {"all": EncoderTraining(900, 2e-5), "tools": EncoderTraining(1600, 1e-4, power=1.0)}
_NO_TOOLS = ("tldr", "nl2bash", "clinc150", "banking77", "hwu64")
_COMBINED = 4  # one request of two for so many requests
_LANGUAGES = ("es", "fr", "de", "it", "pt_BR", "ko", "zh", "ru", "ja")
_STEPS = 1000
_WRITTEN = "written-"
_CROSS = {"cross6": (0, 1, 2, 3, 4, 5), "cross3": (0, 2, 4)}
_FAST = {"fast3": ((0, 2, 5), 24000), "fast2": ((0, 5), 5000)}  # which layers are kept, and the steps


class Work:
    """The files of a run, and the sets in them."""

    def __init__(self, folder: Path, share: float = 1.0) -> None:
        """Read all tokens onto the device. share: of the steps of every training, to try the recipe out."""
        self.folder, self._share, self._started = folder, share, time.perf_counter()
        chosen = np.load(folder / "texts-dev.npz")
        self.dev = [one for name in _sets(chosen) for one in _read(chosen, name, _DEV_REQUEST_WIDTH)]
        self.chosen_on = [one.name for one in self.dev]
        self.train = self.training_sets(_REQUEST_WIDTH)

    def training_sets(self, width: int) -> list[TokenisedSet]:
        """All that is trained on, requests cut to a width; and of each set requests that need the tools of two."""
        found = []
        for file in ("texts-train.npz", "texts-written.npz"):
            arrays = np.load(self.folder / file)
            found += [one for name in _sets(arrays) for one in _read(arrays, name, width, "train")]
        return found + [combined(one, len(one.requests) // _COMBINED, width, seed=0) for one in found]

    def path(self, name: str) -> Path:
        """The file of some weights."""
        return self.folder / f"{name}.safetensors"

    def mean(self, name: str) -> Weights:
        """The mean of the weights of all seeds."""
        return mean_of([read_weights(path) for path in sorted(self.folder.glob(f"{name}-s*.safetensors"))])

    @cached_property
    def misses(self) -> dict[str, Tensor]:
        """Near misses of the published encoder: what all seeds learn from."""
        network = bert(read_weights(self.folder / PUBLISHED)).eval()
        return {one.name: near_misses(network, one, _MISSES) for one in self.train}

    @cached_property
    def scored(self) -> dict[str, ScoredLists]:
        """What the cross-encoder says of near misses of the first encoder."""
        network, model = bert(self.mean("encoder")).eval(), CrossEncoder.read(read_weights(self.path("cross6")))
        return {
            one.name: score_lists(model, one, near_misses(network, one, _LIST), _LISTS, _LIST) for one in self.train
        }

    def steps(self, count: int) -> int:
        """How many steps a training of so many takes here."""
        return max(2, round(count * self._share))

    def say(self, line: str) -> None:
        """Write a line with the seconds since the start."""
        sys.stdout.write(f"{time.perf_counter() - self._started:6.0f} s  {line}\n")
        sys.stdout.flush()

    def tell(self, title: str, network: object, documents: object = None) -> float:
        """Write what a network finds of dev splits; return its mean recall@5."""
        found = measure(network, self.dev, documents)
        self.say_found(title, found)
        return fmean(found[name][1] for name in self.chosen_on)

    def tell_languages(self, title: str, network: object, documents: object = None) -> None:
        """Write what a network finds in other languages."""
        found = measure(network, self.languages(), documents)
        self.say(f"{title:30} " + " ".join(f"{name} {five:.3f}" for name, (_, five, _) in found.items()))
        self._save(title, found)

    def say_found(self, title: str, found: Found) -> None:
        """Write what was found of dev splits."""
        self.say(table_line(title, found, self.chosen_on))
        self._save(title, found)

    def _save(self, title: str, found: Found) -> None:
        """Add a row for each set to measures.jsonl."""
        machine = {"machine": platform.machine()}
        if DEVICE.type == "cuda":
            machine["gpu"] = torch.cuda.get_device_name()
        rows = [measure_row(title, name, self._sizes[name], values, machine) for name, values in found.items()]
        with (self.folder / MEASURES).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {one.name: len(one.documents) for one in (*self.dev, *self.languages())}

    def translations(self) -> list[tuple[Texts, Texts]]:
        """Translated goals of programs that are not held out, and the English ones; languages with a hundred apart."""
        arrays = np.load(self.folder / "translations.npz")
        names = arrays["language"]
        counted = dict(zip(*np.unique(names[~arrays["held"]], return_counts=True), strict=True))
        frequent = [name for name, count in counted.items() if count >= _FEW_PAIRS]
        parts = [names == name for name in frequent] + [~np.isin(names, frequent)]
        texts, english = self._goals(arrays)
        places = [torch.from_numpy(np.flatnonzero(part & ~arrays["held"])).to(DEVICE) for part in parts]
        return [(texts.select(rows), english.select(rows)) for rows in places if len(rows)]

    def translated(self) -> TokenisedSet:
        """The same goals as requests for their programs."""
        arrays = np.load(self.folder / "translations.npz")
        rows = np.flatnonzero(~arrays["held"])
        goals = self._goals(arrays)[0].select(torch.from_numpy(rows).to(DEVICE))
        gold = np.stack([np.arange(len(rows)), arrays["document"][rows]], 1)
        return TokenisedSet("tldr, translated", self._programs(), goals, gold)

    def languages(self) -> list[TokenisedSet]:
        """Translated goals of programs that are held out, by language, over all programs."""
        arrays = np.load(self.folder / "translations.npz")
        texts, english = self._goals(arrays)
        documents, found = self._programs(), []
        for language in ("en", *_LANGUAGES):
            rows = np.flatnonzero(arrays["held"] & (arrays["language"] == ("es" if language == "en" else language)))
            goals = (english if language == "en" else texts).select(torch.from_numpy(rows).to(DEVICE))
            gold = np.stack([np.arange(len(rows)), arrays["document"][rows]], 1)
            found.append(TokenisedSet(language, documents, goals, gold))
        return found

    @staticmethod
    def _goals(arrays: np.lib.npyio.NpzFile) -> tuple[Texts, Texts]:
        """All translated goals, and for each the English one."""
        texts, english = (
            Texts.of(arrays[name], arrays[f"{name}_ends"], _REQUEST_WIDTH) for name in ("translated", "english")
        )
        return texts, english

    def _programs(self) -> Texts:
        return next(one.documents for one in self.train if one.name == "tldr")


def _sets(arrays: np.lib.npyio.NpzFile) -> list[str]:
    return sorted({key.partition("/")[0] for key in arrays.files})


def _read(arrays: np.lib.npyio.NpzFile, name: str, width: int, only: str = "") -> list[TokenisedSet]:
    """The splits of a set, over the same documents."""
    documents = Texts.of(arrays[f"{name}/documents"], arrays[f"{name}/documents_ends"], _DOCUMENT_WIDTH)
    splits = sorted({key.split("/")[1] for key in arrays.files if key.startswith(f"{name}/") and key.count("/") == 2})
    found = []
    for split in splits if not only else [only]:
        key = f"{name}/{split}"
        requests = Texts.of(arrays[f"{key}/requests"], arrays[f"{key}/requests_ends"], width)
        found.append(TokenisedSet(name if only else key, documents, requests, arrays[f"{key}/gold"]))
    return found


def encoder(work: Work, seed: int) -> None:
    """The first encoder of a seed; the next stages begin with the mean of all seeds."""
    network = bert(with_new_tokens(read_weights(work.folder / PUBLISHED)))
    if not seed:
        work.tell("published", network)
        work.tell_languages("published", network)
    train_encoder(network, work.train, EncoderTraining(work.steps(_STEPS), seed=seed), work.misses)
    work.tell(f"encoder, seed {seed}", network)
    write_weights(work.path(f"encoder-s{seed}"), network.state_dict())


def cross(work: Work) -> None:
    """The cross-encoders: one of six layers, and one of three that imitates it."""
    weights = work.mean("encoder")
    network = bert(weights)
    sets = [*work.train, work.translated()]
    misses = {one.name: near_misses(network, one, _MISSES) for one in sets}
    teacher = None
    for name, layers in _CROSS.items():
        model = CrossEncoder(weights, layers)
        steps, rate = (4000, 6e-5) if teacher is None else (5000, 1e-4)
        settings = CrossEncoderTraining(work.steps(steps), rate)
        train_cross_encoder(model, sets, misses, settings, teacher)
        for weight, found in measure_reranked(network, model, work.dev, _WEIGHTS).items():
            work.say_found(f"{name}, weight {weight:g}", found)
        write_weights(work.path(name), model.weights())
        teacher = teacher or model.eval()


def distil(work: Work, seed: int) -> None:
    """Two encoders of a seed, trained beside the cross-encoder: on all sets, and on those of tools alone."""
    tools = [one for one in work.train if one.name.partition(",")[0] not in _NO_TOOLS]
    published = with_new_tokens(read_weights(work.folder / PUBLISHED))
    begins = {"all": (work.mean("encoder"), work.train, None), "tools": (published, tools, work.misses)}
    for kind, (weights, sets, misses) in begins.items():
        network = bert(weights)
        settings = replace(_KINDS[kind], steps=work.steps(_KINDS[kind].steps), seed=seed)
        train_encoder(network, sets, settings, misses, work.scored)
        work.tell(f"distilled, {kind}, seed {seed}", network)
        write_weights(work.path(f"distilled-{kind}-s{seed}"), network.state_dict())


def average(work: Work) -> None:
    """The English encoder of each kind: the mean of the weights of its seeds, and a share of the published ones.

    Together they find more than any of them, above all among tools that none has seen. The dev splits choose.
    """
    published = with_new_tokens(read_weights(work.folder / PUBLISHED))
    for kind in _KINDS:
        trained = work.mean(f"distilled-{kind}")
        best, chosen = -1.0, published
        for share in _PUBLISHED_SHARES:
            weights = mixed(trained, published, share)
            found = work.tell(f"mean of {kind}, {share:g} published", bert(weights))
            if found > best:
                best, chosen = found, weights
        write_weights(work.path(f"averaged-{kind}"), chosen)
    both = mean_of([read_weights(work.path(f"averaged-{kind}")) for kind in _KINDS])
    work.tell("mean of both", bert(both))
    write_weights(work.path("averaged"), both)


def languages(work: Work) -> None:
    """The encoder that ships: translated goals get the vectors of the English ones, and English texts keep theirs.

    Each kind learns this, and their weights are averaged. As much of the English encoder is mixed in again as English
    requests need.
    """
    learned = []
    for kind in _KINDS:
        weights = read_weights(work.path(f"averaged-{kind}"))
        teacher, network = bert(weights).eval(), bert(weights)
        examples = _english(work, teacher)
        examples += [Wanted(texts, embed_all(teacher, english)) for texts, english in work.translations()]
        imitate(network, examples, ImitationTraining(work.steps(6000)))
        work.tell(f"languages, {kind}", network)
        work.tell_languages(f"languages, {kind}", network)
        learned.append({name: tensor.detach().clone() for name, tensor in network.state_dict().items()})
    english, both = read_weights(work.path("averaged")), mean_of(learned)
    needed = work.tell("averaged", bert(english)) - _ENGLISH_LOSS
    for share in _ENGLISH_SHARES:
        chosen = mixed(both, english, share)
        network = bert(chosen)
        title = f"languages, {share:g} English"
        work.tell_languages(title, network)
        if work.tell(title, network) >= needed:
            break
    write_weights(work.path("languages"), chosen)


def fast(work: Work) -> None:
    """Encoders of fewer layers, in the space of the one that ships."""
    weights = read_weights(work.path("languages"))
    teacher = bert(weights).eval()
    examples = _english(work, teacher)
    examples += [Wanted(texts, embed_all(teacher, texts)) for texts, _ in work.translations()]
    for name, (layers, steps) in _FAST.items():
        network = bert(weights, layers)
        # The table of words stays that of the whole encoder: the package holds it once.
        network.embeddings.word_embeddings.weight.requires_grad_(False)
        imitate(network, examples, ImitationTraining(work.steps(steps), 8e-4, dropout=0.0), teacher)
        work.tell(f"{name}, requests alone", network, teacher)
        work.tell_languages(f"{name}, requests alone", network, teacher)
        work.tell(f"{name}, documents too", network)
        write_weights(work.path(name), network.state_dict())


def written(work: Work) -> None:
    """What the written requests bring: the first encoder with those of each catalogue alone, and without any."""
    names = [one.name for one in work.train]
    catalogues = [name for name in names if name.startswith(_WRITTEN) and "," not in name]
    for kept in (*catalogues, ""):
        sets = [one for one in work.train if not one.name.startswith(_WRITTEN) or (kept and one.name.startswith(kept))]
        network = bert(with_new_tokens(read_weights(work.folder / PUBLISHED)))
        train_encoder(network, sets, EncoderTraining(work.steps(_STEPS)), work.misses)
        work.tell(f"encoder, {kept or 'nothing written'}", network)
    write_weights(work.path("unwritten"), network.state_dict())


def _english(work: Work, teacher: object) -> list[Wanted]:
    """All requests, which should rank their documents as the teacher does, and all documents."""
    # As long as requests are where the encoder is used: what it never read here it would get wrong there.
    sets = work.training_sets(_DEV_REQUEST_WIDTH)
    documents = {id(one.documents): one.documents for one in sets}
    told = {key: embed_all(teacher, texts) for key, texts in documents.items()}
    requests = [Wanted(one.requests, embed_all(teacher, one.requests), told[id(one.documents)]) for one in sets]
    return requests + [Wanted(texts, told[key]) for key, texts in documents.items()]


# Each stage with the last file that it writes; some are run once for each seed.
_SEEDED = {"encoder": (encoder, "encoder-s{}"), "distil": (distil, "distilled-tools-s{}")}
_STAGES = {
    "cross": (cross, "cross3"),
    "average": (average, "averaged"),
    "languages": (languages, "languages"),
    "fast": (fast, "fast2"),
    "written": (written, "unwritten"),
}


def _make_texts(work: Path) -> None:
    from recipes.default_encoder.texts import make_texts

    make_texts(work)


def _write_requests(work: Path) -> None:
    from recipes.default_encoder.written import write_requests

    write_requests(work)


_BEFORE = {"write": _write_requests, "texts": _make_texts}


def _trainings(stage: str, seeds: Sequence[int]) -> list[tuple[Callable[[Work], None], str]]:
    """What a stage trains, and the last file of each training: where that is, it is done."""
    if stage in _SEEDED:
        run, made = _SEEDED[stage]
        return [(partial(run, seed=seed), made.format(seed)) for seed in seeds]
    return [_STAGES[stage]] if stage in _STAGES else []


def main() -> None:
    """Read the arguments and run the stages that are named, in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="+", choices=[*_BEFORE, *_SEEDED, *_STAGES, "ship"])
    parser.add_argument("--work", type=Path, default=Path("models/default_encoder"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the encoders that are averaged")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps, to try the recipe out")
    given = parser.parse_args()
    for stage in (one for one in given.stages if one in _BEFORE):
        _BEFORE[stage](given.work)
    trained = [one for stage in given.stages for one in _trainings(stage, given.seeds)]
    work = Work(given.work, given.share) if trained else None
    for run, made in trained:
        if work is not None and not work.path(made).exists():
            run(work)
            gc.collect()  # what a GPU recorded for this training takes gigabytes
    if "ship" in given.stages:
        from recipes.default_encoder.ship import ship

        ship(given.work)


if __name__ == "__main__":
    main()
