"""Documents without what they say twice: what is left out, what stays, and that vectors follow the card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.models import tiny_bert
from toolscout.core.tool import Tool
from toolscout.models.encoders.export import export
from toolscout.models.encoders.onnx_encoder import CARD_FILE, Encoder, fingerprint_of
from toolscout.models.encoders.short_documents import without_repeats


@pytest.mark.parametrize(
    ("tool", "short"),
    [
        (
            Tool(
                "mail",
                "get_email",
                "Returns one message.",
                input_schema={"properties": {"message_id": {"description": "Id of the message."}, "full": {}}},
            ),
            "mail get email\nReturns one message.\nmessage id Id of the message.\nfull",
        ),
        (Tool("dropbox", "move", "Moves a file."), "dropbox move\nMoves a file."),
        (Tool("Live_Sports", "v4Odds", ""), "live sports v 4 odds"),
        (Tool("a", "b", "get_email get email is a name here"), "a b\nget email is a name here"),
        (Tool("a", "b", "get_email gets email"), "a b\nget_email gets email"),
        (Tool("天気", "予報", "明日の天気"), "天気 予報\n明日の天気"),
    ],
)
def test_a_name_stands_there_once(tool: Tool, short: str) -> None:
    assert without_repeats(tool.document()) == short


@pytest.mark.parametrize("text", ["", "\n", "one line", "a\n\nb", " x y"])
def test_other_texts_stay(text: str) -> None:
    assert without_repeats(text) == text


def test_the_card_says_which_documents_an_encoder_reads(tmp_path: Path) -> None:
    source = tiny_bert.write_folder(tmp_path / "source", tiny_bert.random_weights())
    usual = Encoder.load(export(source, tmp_path / "usual"))
    shutil.copytree(usual.folder, tmp_path / "short")
    card = json.loads((tmp_path / "short" / CARD_FILE).read_text()) | {"short_documents": True}
    card["fingerprint"] = fingerprint_of(card)
    (tmp_path / "short" / CARD_FILE).write_text(json.dumps(card))
    short = Encoder.load(tmp_path / "short")
    assert short.fingerprint != usual.fingerprint
    ((_, vectors),) = short.encode_documents(["w1 w_2\nw 1 w 2\nw3"])
    ((_, expected),) = usual.encode_documents(["w 1 w 2\nw3"])
    np.testing.assert_array_equal(vectors, expected)
    np.testing.assert_array_equal(short.encode(["w1 w_2\nw 1 w 2"]), usual.encode(["w1 w_2\nw 1 w 2"]))
