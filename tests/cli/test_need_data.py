"""toolscout need-data: hard negatives by similarity band, and what the band does to the mix."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.cli_samples import Run
from tests.evaluation.made_up import dataset
from tests.toys import HashedWords
from toolscout.core.tool import Tool
from toolscout.data.dataset import request_digest
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.evaluation.hard_negatives import Band, by_band, by_domain, candidates, catalogue_of, mark_kept
from toolscout.models.need_head import NeedHead

pytestmark = pytest.mark.slow

NEAR, FAR = "weather forecast rain wind sun", "quixotic zephyr marmalade"


@pytest.fixture
def ready(filled: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """As filled, with an encoder that runs anywhere."""
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    return filled


def lines(path: Path, *texts: str) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def test_prompts_in_the_band_are_written_once_with_a_split(ready: Run, tmp_path: Path) -> None:
    source = lines(tmp_path / "chat.txt", NEAR, FAR, "", NEAR.upper(), f"{NEAR} and snow")
    done = ready("need-data", source, "--catalogue", "tools.db", "--band", "0.3:0.9", "--out", "hard")
    assert done.exit_code == 0, done.stderr
    prompts = read_prompts(tmp_path / "hard")
    assert [(prompt.text, prompt.source) for prompt in prompts] == [(NEAR, "chat"), (f"{NEAR} and snow", "chat")]
    assert {prompt.split for prompt in prompts} <= {"train", "dev", "test"}
    rows = [json.loads(line) for line in (tmp_path / "hard" / "prompts.jsonl").read_text().splitlines()]
    assert {row["nearest"] for row in rows} == {"weather/get_forecast"}
    assert all(0.3 <= row["similarity"] <= 0.9 for row in rows)
    assert "weather 1" in done.stdout
    assert "1 prompt that came twice" in done.stderr
    assert "no need head" in done.stderr
    assert "2 prompts" in done.stderr
    again = ready("need-data", source, "--catalogue", "tools.db", "--band", "0.3:0.9", "--out", "hard")
    assert (again.exit_code, "not an empty folder" in again.stderr) == (2, True)


def test_with_a_dataset_its_requests_count_and_are_no_prompts(ready: Run, tmp_path: Path) -> None:
    made = dataset()
    made.save(tmp_path / "made-up")
    request = made.split("test").requests[0][1]
    source = tmp_path / "p.jsonl"
    texts = [request, f"{request} sonnet", FAR]
    source.write_text("".join(json.dumps({"text": text, "source": "s"}) + "\n" for text in texts))
    done = ready("need-data", source, "--data", tmp_path / "made-up", "--band", "0.8:1", "--out", "hard")
    assert done.exit_code == 0, done.stderr
    assert [(one.text, one.source) for one in read_prompts(tmp_path / "hard")] == [(f"{request} sonnet", "s")]
    folder = ready("need-data", tmp_path / "hard", "--data", tmp_path / "made-up", "--band", "0.8:1", "--out", "again")
    assert folder.exit_code == 0
    assert read_prompts(tmp_path / "again") == read_prompts(tmp_path / "hard")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--band", "0.6:0.4"), "the lower end first"),
        (("--band", "high"), "is no band; write LOW:HIGH"),
        (("--band", "0.99:1"), "no prompt lies in the band 0.99:1: the best cosines of these 1 go from"),
        (("--catalogue", "nowhere.db"), "there is no catalogue at nowhere.db"),
        (("--data", "bundled"), "name one of --catalogue STORE and --data DATA"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(ready: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    source = lines(tmp_path / "chat.txt", FAR)
    catalogue = () if "--catalogue" in words else ("--catalogue", "tools.db")
    done = ready("need-data", source, *catalogue, *words, "--out", "hard")
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "hard").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.txt", "\n\n", "holds no prompts"),
        ("bad.jsonl", '{"prompt": "x"}\n', 'line 1: a JSON object with a "text"'),
        ("bad.jsonl", "{\n", "line 1: not JSON"),
        ("folder", None, "there is no folder"),
    ],
)
def test_prompts_that_cannot_be_read(ready: Run, tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    done = ready("need-data", name, "--catalogue", "tools.db", "--out", "hard")
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_without_an_encoder_it_says_so(filled: Run, tmp_path: Path) -> None:
    done = filled("need-data", lines(tmp_path / "a.txt", FAR), "--catalogue", "tools.db", "--out", "hard")
    assert (done.exit_code, "there is no sentence encoder" in done.stderr) == (2, True)


def test_tenths_are_evened_out_by_hash_and_counted() -> None:
    encoder = HashedWords()
    tools = [Tool("weather", "forecast", "rain wind sun snow"), Tool("mail", "send", "letter stamp post")]
    known = catalogue_of(tools, {}, {"will the letter arrive": "mail/send"}, encoder)
    assert known.tool_ids == ("weather/forecast", "mail/send", "mail/send")
    head = NeedHead(
        np.zeros((1, encoder.dimension), np.float32), np.ones(1, np.float32), np.ones(1, np.float32), 0.0, 1.0, 0.0, ""
    )
    texts = [(f"rain wind sun snow word{number}", "a") for number in range(30)]
    texts += [("will the letter arrive", "a"), (FAR, "b"), ("letter stamp post", "b")]
    found = candidates(texts, known, encoder, head)
    assert len(found) == 32  # the request itself is none
    for one in found[:3]:
        cosines = known.vectors @ encoder.encode_request(one.text)
        assert one.similarity == pytest.approx(cosines.max(), abs=1e-6)
    chosen = mark_kept(found, Band(0.3, 1.0), per_band=2)
    tenths = by_band(chosen, 0.5)
    assert sum(line.prompts for line in tenths) == 32
    assert max(line.kept for line in tenths) == 2
    assert {line.needing for line in tenths} == {1.0}
    assert by_domain(chosen, 0.5)[0].name == "weather"
    shuffled = mark_kept(list(reversed(found)), Band(0.3, 1.0), per_band=2)
    assert {one.text for one in shuffled if one.kept} == {one.text for one in chosen if one.kept}


def test_splits_follow_the_text_alone_eight_to_one_to_one() -> None:
    encoder = HashedWords()
    known = catalogue_of([Tool("a", "b", "rain")], {}, {}, encoder)
    found = candidates([(f"rain {number}", "") for number in range(400)], known, encoder, None)
    counts = {name: sum(one.split == name for one in found) for name in ("train", "dev", "test")}
    assert 290 < counts["train"] < 350
    assert min(counts.values()) > 20
    assert found[0].split == candidates([("RAIN  0", "")], known, encoder, None)[0].split
    assert request_digest("RAIN  0") == request_digest("rain 0")
