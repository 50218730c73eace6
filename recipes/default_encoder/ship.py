"""Puts trained weights into the package: python -m recipes.default_encoder.ship --work FOLDER --encoder distilled-s0 …

Reads safetensors files of the work folder by their names, and config and tokeniser of the published weights. Writes the
ONNX files and their cards into toolscout/default_model/ and toolscout/default_reranker/. What belongs to an encoder and
is made with it stays as it was: need.npz (recipes.need_head), background.npz and trained_on.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from toolscout.models.encoders.export import default_source, export
from toolscout.models.encoders.onnx_encoder import (
    CARD_FILE,
    MODEL_FILE,
    REQUEST_FILE,
    TABLE_FILE,
    TOKENIZER_FILE,
    Encoder,
    package_folder,
)
from toolscout.models.encoders.sentence_config import CONFIG_FILE
from toolscout.models.encoders.source_folder import WEIGHTS_FILE
from toolscout.models.rerankers import opening
from toolscout.models.rerankers.cross_encoder import CrossEncoder
from toolscout.models.rerankers.export import export_cross_encoder
from toolscout.models.safetensors import read_safetensors

NAME = "toolscout-minilm-3"
SOURCE = "all-MiniLM-L6-v2, trained by recipes/default_encoder"


def source_folder(weights: Path, out: Path) -> Path:
    """A Hugging Face folder of these weights, with as many layers as they have."""
    shutil.copytree(default_source(), out, ignore=shutil.ignore_patterns("*.safetensors", "*.bin", "onnx"))
    shutil.copyfile(weights, out / WEIGHTS_FILE)
    names = (name.partition("encoder.layer.")[2].partition(".")[0] for name in read_safetensors(weights)[1])
    layers = len({name for name in names if name})
    config = json.loads((out / CONFIG_FILE).read_text()) | {"num_hidden_layers": layers}
    (out / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    return out


def ship_encoder(weights: Path, request: Path | None, out: Path) -> Encoder:
    """Write the encoder, with a network of requests where one is named, into the package's folder."""
    with tempfile.TemporaryDirectory() as made:
        small = source_folder(request, Path(made, "request")) if request else None
        built = export(source_folder(weights, Path(made, NAME)), Path(made, "out"), request_encoder=small)
        card = json.loads((built / CARD_FILE).read_text())
        card |= {"name": NAME, "source": SOURCE, "licence": "Apache-2.0"}
        (built / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")
        out.mkdir(exist_ok=True)
        for name in (MODEL_FILE, REQUEST_FILE, TABLE_FILE, TOKENIZER_FILE, CARD_FILE):
            (out / name).unlink(missing_ok=True)
            if (built / name).is_file():
                shutil.copyfile(built / name, out / name)
    return Encoder.load(out)


def ship_reranker(weights: Path, out: Path, max_tokens: int, first: int, weight: float) -> CrossEncoder:
    """Write the cross-encoder into the package's folder, with the options that it was measured with."""
    with tempfile.TemporaryDirectory() as made:
        source = source_folder(weights, Path(made, "cross"))
        built = export_cross_encoder(source, Path(made, "out"), max_tokens=max_tokens, share_tokenizer=True)
        config = json.loads((built / CONFIG_FILE).read_text()) | {
            opening.OPTIONS_KEY: {"first": first, "weight": weight}
        }
        out.mkdir(exist_ok=True)
        shutil.copyfile(built / MODEL_FILE, out / MODEL_FILE)
        (out / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    return CrossEncoder(out)


def main() -> None:
    """Read the arguments, and put what is named into the package."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("models/default_encoder"))
    parser.add_argument("--encoder", help="the weights of the encoder, such as distilled-s0")
    parser.add_argument("--request", help="those of its network of requests, such as fast3-s0")
    parser.add_argument("--reranker", help="those of the cross-encoder, such as cross3-s0")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--first", type=int, default=20)
    parser.add_argument("--weight", type=float, default=1.0)
    given = parser.parse_args()

    def file(name: str) -> Path:
        return given.work / f"{name}.safetensors"

    if given.encoder:
        request = file(given.request) if given.request else None
        encoder = ship_encoder(file(given.encoder), request, package_folder())
        sys.stdout.write(f"{encoder.name} {encoder.fingerprint}\n")
    if given.reranker:  # after the encoder: it shares that one's tokeniser
        shipped = (opening.package_folder(), given.max_tokens, given.first, given.weight)
        reranker = ship_reranker(file(given.reranker), *shipped)
        sys.stdout.write(f"{reranker.name} {reranker.fingerprint}\n")


if __name__ == "__main__":
    main()
