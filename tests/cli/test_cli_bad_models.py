"""Encoders and rerankers that are broken, gone, slow or wide, and texts that are long or odd, on the command line.

What cannot be opened ends with exit code 2 and one line that says why. What fails later costs no tool and no answer:
the tools are stored, words alone are searched, and a note says so.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.cli_samples import Run
from tests.llm.fake_endpoint import Answer, FakeEndpoint, Script, in_turn, refused
from tests.models import tiny_encoders as tiny
from tests.models.tiny_cross_encoder import cross_encoder
from toolscout.cli import add as add_command

REQUEST = "find the weather forecast"
STORED = "note: the tools are stored, and found by words until they are embedded: "
CHECK = ("encoder", "check")


@pytest.fixture
def tools(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of two tools; no encoder and no key is in the environment."""
    monkeypatch.delenv("TOOLSCOUT_ENCODER")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return written(
        tmp_path / "two.jsonl",
        ("post", "send_mail", "send mail to the city"),
        ("weather", "get_forecast", "find the weather forecast"),
    )


def written(path: Path, *tools: tuple[str, str, str]) -> Path:
    keys = ("namespace", "name", "description")
    path.write_text("\n".join(json.dumps(dict(zip(keys, tool, strict=True))) for tool in tools))
    return path


def one_line(text: str) -> str:
    return " ".join(text.split())


def searched(run: Run, request: str, *words: object) -> dict[str, Any]:
    found = run("search", request, *words, "--need-threshold", "0", "--fit-threshold", "0", "--format", "json")
    assert found.exit_code in (0, 1), found.stderr
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def first(answer: dict[str, Any]) -> str:
    return str(answer["considered"][0]["tool_id"])


# Folders


def broken_folder(folder: Path, kind: str) -> Path:
    if kind == "tokenizer":
        (tiny.onnx_folder(folder) / "tokenizer.json").unlink()
        return folder
    if kind == "static tokenizer":
        (tiny.static_folder(folder) / "tokenizer.json").unlink()
        return folder
    if kind == "inputs":
        return tiny.onnx_folder(folder, tiny.graph(tiny.table(), {"tokens": tiny.INT64}))
    if kind == "length":
        return tiny.onnx_folder(folder, files={"config.json": {"hidden_size": 12}})
    if kind == "nan":
        return tiny.onnx_folder(folder, tiny.graph(tiny.table() * np.nan))
    rows = tiny.table()
    rows[0, 0] = np.nan
    return tiny.static_folder(folder, rows)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("tokenizer", "has no tokenizer.json; get the one that was published with the model"),
        ("static tokenizer", "tokenizer.json"),
        ("inputs", "takes tokens (tensor(int64)); supported are, as int64 or int32: input_ids"),
        ("length", "gives vectors of 8 numbers, the configuration says 12"),
        ("nan", "zero or not finite"),
        ("static nan", "values that are not finite numbers"),
    ],
)
@pytest.mark.parametrize("command", ["add", "search", "embed", "check", "environment"])
def test_a_folder_that_is_no_encoder_ends_every_command(
    run: Run, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, says: str, command: str
) -> None:
    folder = broken_folder(tmp_path / "broken", kind)
    run("add", tools, "--no-embed")
    words: tuple[object, ...] = (command, "--encoder", folder)
    if command == "add":
        words = ("add", tools, "--encoder", folder)
    elif command == "search":
        words = ("search", REQUEST, "--encoder", folder)
    elif command == "check":
        words = (*CHECK, folder)
    elif command == "environment":
        monkeypatch.setenv("TOOLSCOUT_ENCODER", str(folder))
        words = ("search", REQUEST)
    done = run(*words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert says in one_line(done.stderr)
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_an_encoder_that_gives_nan_for_some_texts_costs_no_tool_and_no_answer(
    run: Run, tools: Path, tmp_path: Path
) -> None:
    rows = tiny.table()
    rows[tiny.VOCABULARY.index("mail")] = np.nan
    graph, files = tiny.graph(rows, {"input_ids": tiny.INT64}), tiny.sentence_files("mean")
    folder = tiny.onnx_folder(tmp_path / "some-nan", graph, tiny.wordpiece(False), files=files)
    added = run("add", tools, "--encoder", folder)
    assert (added.exit_code, added.stdout[:7]) == (0, "2 added")
    why = "the encoder some-nan gave a vector that is zero or not finite: it is damaged, or overflows"
    assert one_line(added.stderr).startswith(STORED + why)
    assert first(searched(run, REQUEST, "--encoder", folder)) == "weather/get_forecast"
    good = written(tmp_path / "good.jsonl", ("weather", "get_forecast", "find the weather forecast"))
    run("add", good, "--store", tmp_path / "good.db", "--encoder", folder)
    answer = searched(run, "the mail of the weather", "--store", tmp_path / "good.db", "--encoder", folder)
    assert first(answer) == "weather/get_forecast"
    assert any(note.startswith(f"words alone were searched: {why}") for note in answer["notes"])
    failed = run("embed", "--encoder", folder)
    assert failed.exit_code == 2
    assert why in one_line(failed.stderr)


def test_an_encoder_that_is_removed_while_a_store_uses_it(run: Run, tools: Path, tmp_path: Path) -> None:
    folder = tiny.static_folder(tmp_path / "mine")
    assert "2 embedded" in run("add", tools, "--encoder", folder).stdout
    shutil.move(folder, tmp_path / "away")
    answer = searched(run, REQUEST)
    assert first(answer) == "weather/get_forecast"
    assert any("put it back, or name another one with --encoder: nothing is lost" in note for note in answer["notes"])
    more = written(tmp_path / "more.jsonl", ("zoo", "feed", "the lion"))
    added = run("add", more)
    assert (added.exit_code, added.stdout[:7]) == (0, "1 added")
    assert one_line(added.stderr).startswith(STORED)
    assert run("embed").exit_code == 2
    refused_now = run("search", REQUEST, "--encoder", folder)
    assert (refused_now.exit_code, refused_now.stderr[:6]) == (2, "error:")
    shutil.move(tmp_path / "away", folder)
    assert "1 text embedded; 0 of 3" in run("embed").stdout


# Endpoints


def vectors(request: dict[str, Any], count: int | None = None, longer: int = 0, value: float = 1.0) -> Answer:
    data = [
        {"index": place, "embedding": [value, float(len(text)), *[1.0] * (place * longer)]}
        for place, text in enumerate(request["input"][:count])
    ]
    return 200, {}, json.dumps({"data": data}).encode()


BAD_ANSWERS: dict[str, tuple[Script, str]] = {
    "429": (in_turn(refused(429, "slow down", {"Retry-After": "0"})), "answered 429 (slow down) 2 times; ask less"),
    "500": (in_turn(refused(500, "oops")), "answered 500 (oops) 2 times; try again later"),
    "half a batch": (lambda request, _: vectors(request, 1), "gave 1 vectors for"),
    "changing length": (lambda request, _: vectors(request, longer=1), "its vectors are not of one length"),
    "nan": (lambda request, _: vectors(request, value=float("nan")), "holds what is not a finite number"),
    "html": (in_turn((200, {}, b"<html>hello</html>")), "something that is no list of vectors (hello)"),
    "no key": (in_turn(refused(401, "who are you")), "refuses access (401: who are you); put its key into OPENAI_API"),
}


@pytest.mark.parametrize("kind", BAD_ANSWERS)
def test_an_endpoint_that_fails_costs_no_tool_and_no_answer(run: Run, tools: Path, kind: str) -> None:
    script, says = BAD_ANSWERS[kind]
    with FakeEndpoint(script) as fake:
        named = f"{fake.url}?model=m&retries=1&backoff=0.001&rest=0.01"
        added = run("add", tools, "--encoder", named)
        answer = searched(run, REQUEST, "--encoder", named)
        checked, embedded = run(*CHECK, named), run("embed", "--encoder", named)
    assert (added.exit_code, added.stdout[:7]) == (0, "2 added")
    assert one_line(added.stderr).startswith(STORED)
    assert says in one_line(added.stderr)
    assert first(answer) == "weather/get_forecast"
    assert any("2 of 2 tools are not embedded yet" in note for note in answer["notes"])
    for failed in (checked, embedded):
        assert (failed.exit_code, failed.stderr[:6]) == (2, "error:")
        assert says in one_line(failed.stderr)


@pytest.mark.parametrize("kind", [kind for kind in BAD_ANSWERS if kind not in ("half a batch", "changing length")])
def test_an_endpoint_that_fails_later_leaves_words(run: Run, tools: Path, kind: str) -> None:
    script, says = BAD_ANSWERS[kind]
    failing = False

    def answer(request: dict[str, Any], number: int) -> Answer:
        return script(request, number) if failing else vectors(request)

    with FakeEndpoint(answer) as fake:
        named = f"{fake.url}?model=m&retries=1&backoff=0.001&rest=0.01"
        assert "2 embedded" in run("add", tools, "--encoder", named).stdout
        failing = True
        found = searched(run, REQUEST, "--encoder", named)
    assert first(found) == "weather/get_forecast"
    (note,) = [one for one in found["notes"] if one.startswith("words alone were searched: ")]
    assert says.partition(" 2 times")[0] in note


def test_an_endpoint_whose_vectors_change_their_length(run: Run, tools: Path) -> None:
    def growing(request: dict[str, Any], number: int) -> Answer:
        data = [{"index": place, "embedding": [1.0] * (2 + number)} for place in range(len(request["input"]))]
        return 200, {}, json.dumps({"data": data}).encode()

    with FakeEndpoint(growing) as fake:
        added = run("add", tools, "--encoder", f"{fake.url}?model=m&batch=1&concurrency=1")
    assert (added.exit_code, added.stdout[:7]) == (0, "2 added")
    assert "gave vectors of 3 numbers after others of 2: another model" in one_line(added.stderr)


def test_an_endpoint_whose_vectors_have_another_length_than_before(run: Run, tools: Path, tmp_path: Path) -> None:
    length = 2

    def answer(request: dict[str, Any], _: int) -> Answer:
        data = [{"index": place, "embedding": [1.0, *[2.0] * (length - 1)]} for place in range(len(request["input"]))]
        return 200, {}, json.dumps({"data": data}).encode()

    with FakeEndpoint(answer) as fake:
        named = f"{fake.url}?model=m"
        assert "2 embedded" in run("add", tools, "--encoder", named).stdout
        length = 5  # another model under the same name
        found = searched(run, REQUEST, "--encoder", named)
        more = run("add", written(tmp_path / "more.jsonl", ("zoo", "feed", "the lion")), "--encoder", named)
        embedded = run("embed", "--encoder", named)
        length = 2
        assert "1 text embedded; 0 of 3" in run("embed", "--encoder", named).stdout
    why = "gave vectors of 5 numbers after others of 2: another model; check its model 'm', or name another encoder"
    assert first(found) == "weather/get_forecast"
    assert any(note.startswith("words alone were searched: ") and why in note for note in found["notes"])
    assert (more.exit_code, more.stdout[:7]) == (0, "1 added")
    assert one_line(more.stderr).startswith(STORED)
    assert why in one_line(more.stderr)
    assert embedded.exit_code == 2
    assert why in one_line(embedded.stderr)


# Rerankers


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"names": ("tokens", "token_type_ids", "attention_mask")}, "a cross-encoder has whole numbers as input_ids"),
        ({"labels": 5}, "a reranker gives one score"),
    ],
)
def test_a_folder_that_is_no_reranker(run: Run, tools: Path, tmp_path: Path, made: dict[str, Any], says: str) -> None:
    run("add", tools, "--no-embed")
    folder = cross_encoder(tmp_path / "cross", **made)
    done = run("search", REQUEST, "--retriever", "bm25", "--rerank", folder)
    assert done.exit_code == 2
    assert says in one_line(done.stderr)
    (cross_encoder(tmp_path / "other") / "tokenizer.json").unlink()
    done = run("search", REQUEST, "--retriever", "bm25", "--rerank", tmp_path / "other")
    assert done.exit_code == 2
    assert "holds no tokenizer.json; save the model's fast tokeniser beside its graph" in one_line(done.stderr)


def test_a_reranker_that_gives_nan(run: Run, tools: Path, tmp_path: Path) -> None:
    run("add", tools, "--no-embed")
    folder = cross_encoder(tmp_path / "cross", factor=float("nan"))
    answer = searched(run, REQUEST, "--retriever", "bm25", "--rerank", folder)
    assert first(answer) == "weather/get_forecast"
    assert any(note.startswith("the reranker gave no usable score") for note in answer["notes"])


def test_a_reranker_that_hangs(run: Run, tools: Path) -> None:
    def hanging(_: dict[str, Any], __: int) -> Answer:
        time.sleep(5)
        return 200, {}, b"{}"

    run("add", tools, "--no-embed")
    with FakeEndpoint(hanging) as fake:
        words = ("--retriever", "rerank", "--part", "bm25", "--option", f"reranker={fake.url}?model=m")
        started = time.monotonic()
        answer = searched(run, REQUEST, *words, "--option", "deadline_ms=200")
        assert time.monotonic() - started < 4
    assert first(answer) == "weather/get_forecast"
    assert answer["notes"][-1].endswith("in 200 ms; the others keep their place")


# Long and odd texts

LONG = 100_000
ODD = (
    ("long", "report", "find the weather forecast " + "lion " * (LONG // 5)),
    ("long", "word", "dinner " + "x" * LONG),
    ("he", "שלח_דואר", "שולח הודעת דואר אלקטרוני לאדם"),
    ("ar", "طقس", "يعرض حالة الطقس في المدينة"),
    ("fr", "café_reserver", "Réserve une table au café près de la gare"),
    ("marks", "zalgo", "elephant Z" + "\u0301\u0302\u0303" * (LONG // 3) + "algo"),
    ("bidi", "turned", "\u202eelbat\u202c turns \u2067the zoo\u2069 round"),
)
WAYS = ("bm25", "hybrid", "dense", "bm25 reranked", "hybrid reranked")


@pytest.fixture(params=["onnx", "model2vec"])
def odd(run: Run, tools: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """As run, over the odd tools, embedded by a tiny encoder."""
    folder = tmp_path / "encoder"
    tiny.onnx_folder(folder) if request.param == "onnx" else tiny.static_folder(folder)
    cross_encoder(tmp_path / "cross")
    added = run("add", written(tmp_path / "odd.jsonl", *ODD), tools, "--encoder", folder)
    assert added.exit_code == 0
    assert added.stderr.startswith("warning: ")  # of the tool whose text turns round, and of no other
    assert added.stderr.count("bidi-override") == added.stderr.count("bidi/turned") == 1
    assert "7 added" in added.stdout
    assert "7 embedded" in added.stdout
    return run


def ways(way: str, tmp_path: Path) -> tuple[object, ...]:
    method, _, reranked = way.partition(" ")
    return ("--retriever", method, *(("--rerank", tmp_path / "cross") if reranked else ()))


@pytest.mark.parametrize("way", WAYS)
def test_texts_of_a_hundred_thousand_characters(odd: Run, tmp_path: Path, way: str) -> None:
    words, by_words = ways(way, tmp_path), way != "dense"
    cut = "characters; the first 20,000 were searched"
    for request in ("lion " * (LONG // 5), "x" * LONG, "\u0301" * LONG):
        answer = searched(odd, request, *words)
        assert answer["notes"][-1] == f"the request has {len(request):,} {cut}"
        if by_words and request.startswith("lion"):
            assert first(answer) == "long/report"
    assert not any(cut in note for note in searched(odd, "x" * 20_000, *words)["notes"])
    if by_words:
        assert first(searched(odd, "lion", *words)) == "long/report"
        assert first(searched(odd, "dinner", *words)) == "long/word"
    piped = odd("search", "-", *words, "--format", "json", input="find the lion " * LONG)
    assert piped.exit_code in (0, 1), piped.stderr


@pytest.mark.parametrize("way", [way for way in WAYS if way != "dense"])
@pytest.mark.parametrize(
    ("request_text", "tool"),
    [
        ("שולח דואר אלקטרוני", "he/שלח_דואר"),
        ("\u202bשולח דואר אלקטרוני\u202c", "he/שלח_דואר"),
        ("he/שלח_דואר", "he/שלח_דואר"),
        ("حالة الطقس", "ar/طقس"),
        ("حَالَةُ الطَّقْسِ", "ar/طقس"),
        ("café gare", "fr/café_reserver"),
        ("cafe\u0301 gare", "fr/café_reserver"),
        ("cafe gare", "fr/café_reserver"),
        ("elephant", "marks/zalgo"),
        ("turns the zoo round", "bidi/turned"),
    ],
)
def test_right_to_left_and_combining_characters(
    odd: Run, tmp_path: Path, way: str, request_text: str, tool: str
) -> None:
    answer = searched(odd, request_text, *ways(way, tmp_path))
    found = [hit["tool_id"] for hit in answer["considered"]]
    # The tiny encoders know none of these letters, so that their half of a hybrid is chance.
    assert tool in (found[:2] if way.startswith("hybrid") else found[:1])
    shown = odd("search", request_text, *ways(way, tmp_path), "--need-threshold", "0", "--fit-threshold", "0")
    assert shown.exit_code == 0
    assert not set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2069") & set(shown.stdout)


def test_nothing_but_marks_of_direction_is_an_empty_request(odd: Run) -> None:
    refused_now = odd("search", "\u200f\u202e\u2067")
    assert refused_now.exit_code == 2
    assert "the request is empty" in refused_now.stderr


# Wide vectors


def test_the_memory_of_vectors_is_said_before_the_first_is_made(
    run: Run, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add_command, "MUCH_MEMORY", 2 * 4096 * 5)
    named = "https://host.invalid/v1?model=m&dimensions=4096&price=1000&ceiling=0.0001"
    added = run("add", tools, "--encoder", named)
    memory, problem = added.stderr.splitlines()
    assert memory == "note: the vectors of 2 tools take about 0 MB of memory"
    assert problem.startswith(STORED)
    assert "and the ceiling is 0.0001" in problem
    again = run("embed", "--encoder", named)
    assert again.stderr.splitlines()[0] == memory


@pytest.mark.slow
def test_the_memory_of_4096_numbers_for_each_of_46587_tools(run: Run, tools: Path, tmp_path: Path) -> None:
    many = written(tmp_path / "many.jsonl", *((f"space{n % 50}", f"tool_{n}", f"does {n}") for n in range(46_587)))
    named = "https://host.invalid/v1?model=m&dimensions=4096&price=1000&ceiling=0.0001"  # nothing is sent
    added = run("add", many, "--encoder", named)
    assert added.exit_code == 0
    assert added.stderr.splitlines()[0] == "note: the vectors of 46,587 tools take about 954 MB of memory"
    assert "46,587 added" in added.stdout
