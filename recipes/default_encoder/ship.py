"""Puts the trained models into the package: toolscout/default_model and toolscout/default_reranker."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

from recipes.default_encoder.rows import MEASURES
from recipes.default_encoder.texts import CHOSEN_ON, MADE, TRAINED, WRITTEN, catalogue, translated_goals
from toolscout.data.dataset import WRITTEN as BY_A_MODEL
from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.locate import find_dataset
from toolscout.evaluation.row import commit
from toolscout.models.encoders.export import default_source, export
from toolscout.models.encoders.onnx_encoder import (
    CARD_FILE,
    MODEL_FILE,
    REQUEST_FILE,
    TOKENIZER_FILE,
    Encoder,
    fingerprint_of,
)
from toolscout.models.encoders.sentence_config import CONFIG_FILE
from toolscout.models.encoders.source_folder import WEIGHTS_FILE
from toolscout.models.rerankers.cross_encoder import SHORT_KEY, CrossEncoder
from toolscout.models.rerankers.export import export_cross_encoder
from toolscout.models.rerankers.opening import OPTIONS_KEY
from toolscout.models.safetensors import read_safetensors
from toolscout.retrievers.provenance import SeenSplit, TrainedOn, TrainingSet

PACKAGE = Path(__file__).resolve().parents[2] / "toolscout"
RESULTS = PACKAGE.parent / "results" / "default_encoder.jsonl"
NAME = "toolscout-minilm-3"
ENCODER = "languages"
SMALL_ENCODER = "fast3"
CROSS_ENCODER = "cross3"
PAIR_TOKENS = 128  # as in cross_encoder.py
# The options of rerank, as measured on dev.
RERANKING = {"first": 20, "weight": 1.0}


def ship(work: Path) -> None:
    """Export the encoder and the cross-encoder and write what they have seen."""
    model, reranker = PACKAGE / "default_model", PACKAGE / "default_reranker"
    ship_encoder(work, model)
    seen(work).save(model)
    ship_reranker(work, reranker)
    ship_measures(work, RESULTS)


def ship_encoder(work: Path, out: Path) -> Encoder:
    """Export the encoder, with the small network where one was trained; files of the one before do not stay.

    The small one is used where a user asks for it: it finds a little less.
    """
    small = source_folder(work, SMALL_ENCODER) if weights_file(work, SMALL_ENCODER).exists() else None
    exported = export(source_folder(work, ENCODER), work / "exported", request_encoder=small)
    card = json.loads((exported / CARD_FILE).read_text())
    card |= {"name": NAME, "source": "all-MiniLM-L6-v2, trained by recipes/default_encoder", "licence": "Apache-2.0"}
    card["short_documents"] = True  # as texts.py made them
    card.pop("request_file", None)
    card["fingerprint"] = fingerprint_of(card)
    (exported / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")
    out.mkdir(exist_ok=True)
    for name in (MODEL_FILE, REQUEST_FILE, TOKENIZER_FILE, CARD_FILE):
        (out / name).unlink(missing_ok=True)
        if (exported / name).exists():
            shutil.copyfile(exported / name, out / name)
    encoder = Encoder.load(out)
    encoder.encode_request("Does it run?")
    return encoder


def ship_reranker(work: Path, out: Path) -> CrossEncoder:
    """Export the cross-encoder, with the options that it was measured with; it shares the encoder's tokeniser."""
    source = cross_encoder_folder(work, CROSS_ENCODER)
    export_cross_encoder(source, out, "int8", max_tokens=PAIR_TOKENS, share_tokenizer=True)
    config = json.loads((out / CONFIG_FILE).read_text()) | {OPTIONS_KEY: RERANKING, SHORT_KEY: True}
    (out / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    return CrossEncoder(out)


def ship_measures(work: Path, out: Path) -> None:
    """Write what the models of all stages found of dev splits, which is in the work folder, as rows of results."""
    rows = [json.loads(line) | {"commit": commit()} for line in (work / MEASURES).read_text().splitlines()]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))


def weights_file(work: Path, stage: str) -> Path:
    """The weights that a stage wrote."""
    return work / f"{stage}.safetensors"


def source_folder(work: Path, stage: str) -> Path:
    """A Hugging Face folder with the weights of a stage: the published one with other weights and the new tokeniser."""
    folder, weights = work / f"{stage}-folder", weights_file(work, stage)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(default_source(), folder)
    shutil.copyfile(weights, folder / WEIGHTS_FILE)
    shutil.copyfile(work / "tokenizer.json", folder / TOKENIZER_FILE)
    names = (name.partition("encoder.layer.")[2].partition(".")[0] for name in read_safetensors(weights)[1])
    config = json.loads((folder / CONFIG_FILE).read_text()) | {"num_hidden_layers": len(set(filter(None, names)))}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    return folder


def cross_encoder_folder(work: Path, stage: str) -> Path:
    """A Hugging Face folder with a cross-encoder, as `toolscout search --rerank FOLDER` takes it."""
    folder = source_folder(work, stage)
    config = json.loads((folder / CONFIG_FILE).read_text())
    config |= {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    return folder


def seen(work: Path) -> TrainedOn:
    """All requests that were trained on, those of the dev splits that chose, and the documents that were gold."""
    sets = []
    for name, (train, dev) in TRAINED.items():
        folder = work / "pool" / name if name in MADE else find_dataset(name)
        data = Dataset.load(folder, [split for split in (train, dev) if split])
        sets.append(TrainingSet(data, train, dev))
    sets += [TrainingSet(_written(work, name), "train", "") for name in WRITTEN]
    chosen = []
    for name, splits in CHOSEN_ON.items():
        data = Dataset.load(find_dataset(name), list(splits))
        chosen += [SeenSplit(name, data.digest(one), one, "dev", data.request_digests(one)) for one in splits]
    goals = frozenset(request_digest(pair["text"]) for pair in translated_goals())
    translated = SeenSplit("tldr-parallel", request_digest("".join(sorted(goals))), "pairs", "train", goals)
    return TrainedOn.of(sets) | TrainedOn((*chosen, translated))


def _written(work: Path, name: str) -> Dataset:
    """The requests that a language model wrote for a catalogue."""
    with gzip.open(work / "written" / f"kept-{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = {f"s{number}": json.loads(line) for number, line in enumerate(file)}
    requests = {key: text for key, (text, _) in rows.items()}
    gold = {key: tuple(tools) for key, (_, tools) in rows.items()}
    about = {key: {BY_A_MODEL: True} for key in rows}
    return Dataset(f"written-{name}", catalogue(name), requests, {"train": gold}, about)
