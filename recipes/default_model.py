"""Puts a trained encoder into the package as the default one: python recipes/default_model.py MODEL

MODEL is the folder that recipes/default_model.sh trained. Writes toolscout/default_model/: the encoder as it is
served, and the digests of all requests it was trained on, and of the dev splits that its recipe was chosen on.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.models.encoders.onnx_encoder import CARD_FILE, MODEL_FILE, TOKENIZER_FILE, Encoder
from toolscout.retrievers.provenance import SeenSplit, TrainedOn

OUT = Path(__file__).resolve().parent.parent / "toolscout" / "default_model"
NAME = "toolscout-minilm-2"
# Looked at to choose the share of trained weights.
CHOSEN_ON = ("toollens:dev", "toollens:unseen_tool.dev", "simpletoolquestions:dev", "toolbench-g3:dev", "bundled:dev")


def seen(model: Path) -> TrainedOn:
    """What the model was trained on, and what its recipe was chosen on."""
    known = TrainedOn.load(model)
    chosen = []
    for text in CHOSEN_ON:
        name, split = text.split(":")
        dataset = Dataset.load(find_dataset(name), [split])
        chosen.append(SeenSplit(name, dataset.digest(split), split, "dev", dataset.request_digests(split)))
    return TrainedOn(known.splits + tuple(chosen), known.tools, known.written)


def main(model: Path) -> None:
    """Copy the encoder, name it, and write what it has seen."""
    OUT.mkdir(exist_ok=True)
    for name in (MODEL_FILE, TOKENIZER_FILE):
        shutil.copyfile(model / "encoder" / name, OUT / name)
    card = json.loads((model / "encoder" / CARD_FILE).read_text())
    card |= {"name": NAME, "source": "all-MiniLM-L6-v2, trained by recipes/default_model.sh", "licence": "Apache-2.0"}
    (OUT / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")
    seen(model).save(OUT)
    Encoder.load(OUT).encode_request("Does it run?")


if __name__ == "__main__":
    if not os.environ.get("TOOLSCOUT_DATA"):
        sys.exit("name the folder of datasets: TOOLSCOUT_DATA")
    main(Path(sys.argv[1]))
