"""Dataset: BEIR folders in and out, digests, requests without gold, and what it refuses."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset, request_digest, tool_from_row, without_corpus_id
from toolscout.errors import BadDataset, BadTool

CORPUS: list[dict[str, Any]] = [
    {
        "_id": "7",
        "title": "",
        "text": "flat text",
        "metadata": {
            "tool": {
                "name": "send_mail",
                "namespace": "mail",
                "title": "Send",
                "description": "Send a mail.",
                "inputSchema": {"type": "object", "properties": {"to": {"type": "string"}}},
                "_meta": {"category": ["Office", "Mail"], "tool_description": "A mail service"},
            }
        },
    },
    {"_id": "8", "title": "Find a file", "text": "Finds files by name."},
    {"_id": "9", "title": "", "text": "No title."},
]
QUERIES: list[dict[str, Any]] = [
    {"_id": "q1", "text": "Mail this to Ann", "metadata": {"expects": "use", "split": "test"}},
    {"_id": "q2", "text": "Where is the report?", "metadata": {"scene": "s4"}},
    {"_id": "q3", "text": "How are you?", "metadata": {"expects": "no_tool", "split": "test"}},
    {"_id": "q4", "text": "Fly me to the moon", "metadata": {"expects": "nothing_fits", "split": "test"}},
    {"_id": "q5", "text": "Mail it and file it"},
]
TEST_ROWS = "q1\t7\t1\nq2\t8\t1\nq2\t9\t0\nq5\t7\t1\nq5\t8\t2\n"
HEADER = "query-id\tcorpus-id\tscore\n"


def write(
    folder: Path,
    corpus: Iterable[Mapping[str, Any] | str] = CORPUS,
    queries: Iterable[Mapping[str, Any] | str] = QUERIES,
    qrels: Mapping[str, str] | None = None,
) -> Path:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", corpus), ("queries", queries)):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for split, text in ({"test": HEADER + TEST_ROWS} if qrels is None else qrels).items():
        (folder / "qrels" / f"{split}.tsv").write_text(text)
    return folder


def test_a_row_with_a_tool_keeps_all_that_the_tool_says() -> None:
    tool = tool_from_row(CORPUS[0], "elsewhere")
    assert (tool.id, tool.title, tool.description) == ("mail/send_mail", "Send", "Send a mail.")
    assert tool.tags == ("Office", "Mail")
    assert tool.meta == {"category": ["Office", "Mail"], "tool_description": "A mail service", "corpus_id": "7"}
    assert tool.input_schema == {"type": "object", "properties": {"to": {"type": "string"}}}


def test_a_flat_row_is_named_by_its_title_or_else_its_id() -> None:
    assert tool_from_row(CORPUS[1], "files").id == "files/Find a file"
    assert tool_from_row(CORPUS[2], "files").id == "files/9"
    assert tool_from_row({"_id": "1", "title": " two\nlines ", "text": "t"}, "n").name == "two lines"
    assert tool_from_row(CORPUS[1], "files").description == "Finds files by name."


def test_one_category_is_one_tag_and_tags_come_once() -> None:
    record = {"name": "x", "namespace": "y", "tags": ["Food", "new"], "_meta": {"category": "Food"}}
    assert tool_from_row({"_id": "1", "metadata": {"tool": record}}, "n").tags == ("Food", "new")


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"_id": "1", "metadata": {"tool": "mail"}},
        {"_id": "1", "metadata": {"tool": {"name": ""}}},
        {"_id": "1", "metadata": {"tool": {"name": "a\nb"}}},
        {"_id": "1", "text": 5},
    ],
)
def test_a_row_that_makes_no_tool_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(BadTool):
        tool_from_row(row, "n")


@pytest.mark.parametrize("kind", ["single", "no_tool", 7, ["a", "list"]])
def test_a_kind_in_the_metadata_of_others_is_theirs(tmp_path: Path, kind: Any) -> None:
    queries = [{"_id": "q1", "text": "Mail this to Ann", "metadata": {"kind": kind, "split": "test"}}]
    data = Dataset.load(write(tmp_path, queries=queries, qrels={"test": HEADER + "q1\t7\t1\n"}))
    assert data.kind("q1") == "use"
    assert data.metadata["q1"]["kind"] == kind


def test_load_reads_tools_requests_gold_kinds_and_scenes(tmp_path: Path) -> None:
    folder = write(tmp_path / "small")
    (folder / "scenes.tsv").write_text("scene-id\ttool-id\ns4\t8\ns4\t7\n")
    data = Dataset.load(folder)
    assert (data.name, data.splits) == ("small", ("test",))
    assert [tool.id for tool in data.tools] == ["mail/send_mail", "small/Find a file", "small/9"]
    split = data.split("test")
    assert split.requests == [("q1", "Mail this to Ann"), ("q2", "Where is the report?"), ("q5", "Mail it and file it")]
    assert split.gold == [("mail/send_mail",), ("small/Find a file",), ("mail/send_mail", "small/Find a file")]
    assert data.goldless("test") == [("q3", "How are you?"), ("q4", "Fly me to the moon")]
    kinds = ["use", "use", "no_tool", "nothing_fits", "use"]
    assert [data.kind(request_id) for request_id in data.requests] == kinds
    assert data.scenes == {"s4": ("small/Find a file", "mail/send_mail")}
    assert [data.scene(key) for key in ("q2", "q3")] == ["s4", "q3"]
    assert data.scene("q5") == "mail/send_mail small/Find a file"


def test_gzip_byte_order_marks_windows_lines_and_missing_headers_are_read(tmp_path: Path) -> None:
    plain = Dataset.load(write(tmp_path / "a" / "set"))
    folder = write(tmp_path / "b" / "set", qrels={})
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress((folder / "corpus.jsonl").read_bytes()))
    (folder / "corpus.jsonl").unlink()
    (folder / "queries.jsonl").write_bytes(b"\xef\xbb\xbf" + (folder / "queries.jsonl").read_bytes())
    (folder / "qrels" / "test.tsv.gz").write_bytes(gzip.compress(TEST_ROWS.replace("\n", "\r\n").encode()))
    assert Dataset.load(folder) == plain


def test_only_the_splits_asked_for_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path, qrels={"test": HEADER + TEST_ROWS, "unseen_tool.test": HEADER + "q1\t7\t1\n", "bad": "?"})
    data = Dataset.load(folder, splits=["unseen_tool.test"])
    assert data.splits == ("unseen_tool.test",)
    with pytest.raises(BadDataset, match=r"no split train, dev; it has: bad, test, unseen_tool\.test"):
        Dataset.load(folder, splits=["train", "test", "dev"])
    with pytest.raises(BadDataset, match=r"no split 'test'; it has: unseen_tool\.test"):
        data.split("test")


def test_two_rows_of_one_tool_id_are_merged_if_equal_and_kept_apart_if_not(tmp_path: Path) -> None:
    tool = {"name": "get", "namespace": "web", "description": "Gets."}
    other = {**tool, "description": "Gets it."}
    natural = {**tool, "namespace": "web-2", "description": "Third."}
    rows = [{"_id": str(i), "metadata": {"tool": t}} for i, t in enumerate([tool, tool, other, other, natural])]
    qrels = HEADER + "".join(f"q1\t{i}\t1\n" for i in range(5))
    data = Dataset.load(write(tmp_path, corpus=rows, queries=QUERIES[:1], qrels={"test": qrels}))
    assert [tool.id for tool in data.tools] == ["web/get", "web-2/get", "web-2-2/get"]
    assert data.split("test").gold == [("web/get", "web-2/get", "web-2-2/get")]
    assert [tool.meta["corpus_id"] for tool in data.tools] == ["0", "2", "4"]


def test_save_then_load_gives_the_same_dataset(tmp_path: Path) -> None:
    folder = write(tmp_path / "one" / "set")
    (folder / "scenes.tsv").write_text("s4\t8\ns4\t7\n")
    data = Dataset.load(folder)
    data.save(tmp_path / "two" / "set")
    again = Dataset.load(tmp_path / "two" / "set")
    assert again == data
    assert again.digest() == data.digest()
    row = json.loads((tmp_path / "two" / "set" / "corpus.jsonl").read_text().splitlines()[0])
    assert (row["_id"], row["text"]) == ("7", data.tools[0].document())
    assert "corpus_id" not in row["metadata"]["tool"]["_meta"]
    with pytest.raises(BadDataset, match="not an empty folder"):
        data.save(tmp_path / "two" / "set")


names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
texts = st.text(max_size=20)
tools = st.builds(Tool, namespace=names, name=names, description=texts, title=texts, tags=st.lists(names).map(tuple))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(tools, min_size=1, max_size=6, unique_by=lambda tool: tool.id),
    st.dictionaries(names, texts.filter(str.strip), min_size=1, max_size=5),
    st.data(),
)
def test_any_dataset_survives_the_disk(
    tmp_path_factory: pytest.TempPathFactory, tools: list[Tool], requests: dict[str, str], data: st.DataObject
) -> None:
    golds = st.lists(st.sampled_from([tool.id for tool in tools]), min_size=1, unique=True).map(tuple)
    qrels = data.draw(st.dictionaries(st.sampled_from(sorted(requests)), golds, min_size=1))
    made = Dataset("set", tools, requests, {"test": qrels})
    folder = tmp_path_factory.mktemp("saved") / "set"
    made.save(folder)
    read = Dataset.load(folder)
    assert (read.requests, read.qrels, read.digest()) == (made.requests, made.qrels, made.digest())
    for tool, again in zip(made.tools, read.tools, strict=True):
        assert again.to_record() == {**tool.to_record(), "_meta": {"corpus_id": tool.id}}


def test_the_digest_sees_every_change_and_no_reordering(tmp_path: Path) -> None:
    def digest(name: str, **parts: Any) -> str:
        return Dataset.load(write(tmp_path / name / "set", **parts)).digest()

    same = digest("same")
    rows = HEADER + "".join(sorted(TEST_ROWS.splitlines(keepends=True), reverse=True))
    reordered = {"corpus": [dict(reversed(row.items())) for row in reversed(CORPUS)], "queries": QUERIES[::-1]}
    assert digest("reordered", **reordered, qrels={"test": rows}) == same
    changed = [
        digest("tool", corpus=[*CORPUS[:2], {**CORPUS[2], "text": "Another text."}]),
        digest("request", queries=[*QUERIES[:4], {**QUERIES[4], "text": "Mail it"}]),
        digest(
            "kind",
            queries=[*QUERIES[:3], {**QUERIES[3], "metadata": {"expects": "no_tool", "split": "test"}}, QUERIES[4]],
        ),
        digest("gold", qrels={"test": HEADER + TEST_ROWS + "q1\t9\t1\n"}),
        digest("split", qrels={"dev": HEADER + TEST_ROWS}, queries=[{**row, "metadata": {}} for row in QUERIES]),
    ]
    assert len({same, *changed}) == 1 + len(changed)


def test_the_digest_of_one_split_does_not_depend_on_the_others(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", qrels={"test": HEADER + TEST_ROWS, "train": HEADER + "q5\t9\t1\n"})
    whole, part = Dataset.load(folder), Dataset.load(folder, splits=["test"])
    assert whole.digest("test") == part.digest("test") == part.digest() != whole.digest()
    assert whole.new_tools(train="test", test="train") == {"set/9"}


def test_the_tools_are_read_once_for_the_digests_of_all_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(tool: Tool) -> Tool:
        read.append(tool.id)
        return without_corpus_id(tool)

    monkeypatch.setattr("toolscout.data.dataset.without_corpus_id", counted)
    sell = Tool("shop", "sell", "Sells.", meta={"corpus_id": "7", "kind": "x"})
    tools = [sell, Tool("shop", "buy", "Buys.", tags=("money",))]
    qrels = {"train": {"a": ("shop/buy",)}, "dev": {"b": ("shop/sell",)}}
    data = Dataset("set", tools, {"a": "buy milk", "b": "sell it"}, qrels)
    # As they stand in models and results that were written before.
    before = [
        "3457f48144a89f705a9fb49695f1b01a",
        "02cb7085fa5aabb941ada26b015ec921",
        "58aee158db0794e3932e0dc0a2870e49",
    ]
    assert [data.digest("train"), data.digest("dev"), data.digest()] == before
    assert read == ["shop/buy", "shop/sell"]
    assert data == Dataset("set", tools, data.requests, qrels)
    assert "Buys" not in repr(data).rpartition("scenes")[2]
    other = replace(data, tools=[*tools, Tool("shop", "lend")])
    assert other.digest() not in before
    data.tools.append(Tool("shop", "lend"))
    assert data.digest() == other.digest()


def test_request_digests_find_the_same_request_in_other_words_of_case_and_space(tmp_path: Path) -> None:
    data = Dataset.load(write(tmp_path))
    expected = {request_digest(row["text"]) for row in QUERIES}
    assert data.request_digests("test") == expected
    assert request_digest("  mail THIS\tto ann\n") in expected
    assert request_digest("mail this to anna") not in expected


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"corpus": ["{"]}, r"corpus\.jsonl line 1: not JSON"),
        ({"corpus": ["[" * 100_000]}, r"corpus\.jsonl line 1: not JSON"),
        ({"corpus": ["[]"]}, r"corpus\.jsonl line 1: a JSON object is needed, got list"),
        ({"corpus": ['{"text": "x"}']}, r"corpus\.jsonl line 1: every row needs an _id"),
        ({"corpus": [*CORPUS, CORPUS[0]]}, r"corpus\.jsonl line 4: the _id 7 is already that of line 1"),
        ({"corpus": ['{"_id": "1", "metadata": {"tool": {}}}']}, r"corpus\.jsonl line 1: a tool needs a name"),
        ({"corpus": []}, r"corpus\.jsonl holds no tools"),
        ({"queries": []}, r"queries\.jsonl holds no requests"),
        ({"queries": [*QUERIES, QUERIES[1]]}, r"queries\.jsonl line 6: the _id q2 is already that of line 2"),
        ({"queries": [{"_id": "q1", "text": " "}]}, r"queries\.jsonl line 1: request q1 needs a text"),
        ({"queries": [{"_id": "q", "text": "x", "metadata": 1}]}, r"queries\.jsonl line 1: metadata must be"),
        ({"qrels": {"test": HEADER}}, r"qrels/test\.tsv is an empty split"),
        ({"qrels": {"test": HEADER + "q1\t7\t0\n"}}, r"qrels/test\.tsv is an empty split"),
        ({"qrels": {"test": "query\tdoc\tscore\n"}}, r"test\.tsv line 1: needs query-id TAB corpus-id TAB score"),
        ({"qrels": {"test": HEADER + "q1\t0\t7\t1\n"}}, r"test\.tsv line 2: needs"),
        ({"qrels": {"test": HEADER + "q1 7 1\n"}}, r"test\.tsv line 2: needs"),
        ({"qrels": {"test": HEADER + "q1\t7\t1\nq1\t7\t0\n"}}, r"test\.tsv line 3: q1 and 7 were given another"),
        ({"qrels": {"test": HEADER + "q0\t7\t1\n"}}, r"test\.tsv: 1 unknown request ids: q0; add them"),
        (
            {"qrels": {"test": HEADER + "".join(f"q1\tx{i}\t1\n" for i in range(9))}},
            r"test\.tsv: 9 unknown tool ids: x0, x1, x2, x3, x4 and 4 more",
        ),
        ({"qrels": {"test": ""}}, r"qrels/test\.tsv is an empty split"),
        ({"qrels": {"test": HEADER + "q1\t7\tnan\n"}}, r"test\.tsv line 2: the score must be a number"),
        (
            {"qrels": {"test": HEADER + "q1\t7\t1\nq2\t7\t0\nq5\t8\t0\n"}},
            r"test\.tsv: 2 requests with no gold tool: q2, q5; give each a row with a score above 0, remove its rows",
        ),
        ({"qrels": {"test": HEADER + "q1\t7\t1\nq3\t7\t1\n"}}, "request q3 expects no_tool and has gold tools"),
        ({"qrels": {"test": HEADER + "q2\t7\t1\n"}}, "request q1 expects use and has no gold tools"),
        (
            {"queries": [{"_id": "q1", "text": "x", "metadata": {"expects": "maybe"}}], "qrels": {"t": "q1\t7\t1"}},
            "'maybe'",
        ),
    ],
)
def test_malformed_folders_name_the_file_and_line(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(BadDataset, match=message):
        Dataset.load(write(tmp_path, **parts))


@pytest.mark.parametrize("missing", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_half_a_folder_names_what_is_missing(tmp_path: Path, missing: str) -> None:
    folder = write(tmp_path)
    (folder / missing).unlink()
    with pytest.raises(BadDataset, match=f"only half a dataset: {missing.split('/')[0]}"):
        Dataset.load(folder)
    with pytest.raises(BadDataset, match="is not a folder"):
        Dataset.load(tmp_path / "nowhere")


def test_an_empty_folder_names_all_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    message = (
        r"half a dataset: corpus\.jsonl \(or corpus\.jsonl\.gz\) and queries\.jsonl .* and qrels/\*\.tsv .* is missing"
    )
    with pytest.raises(BadDataset, match=message):
        Dataset.load(tmp_path)
    (tmp_path / "corpus.jsonl").mkdir()
    with pytest.raises(BadDataset, match=message):
        Dataset.load(tmp_path)


def test_a_request_that_needs_no_tool_may_say_so_with_a_score_of_0(tmp_path: Path) -> None:
    data = Dataset.load(write(tmp_path, qrels={"test": HEADER + TEST_ROWS + "q3\t7\t0\nq3\t8\t0\n"}))
    assert data.goldless("test") == [("q3", "How are you?"), ("q4", "Fly me to the moon")]


@pytest.mark.parametrize("rows", ["s4\t8\ns4\tnowhere\n", "s4\n", "s4\t8\t1\n"])
def test_malformed_scenes_are_refused(tmp_path: Path, rows: str) -> None:
    (write(tmp_path) / "scenes.tsv").write_text("scene-id\ttool-id\n" + rows)
    with pytest.raises(BadDataset, match=r"scenes\.tsv line \d: needs a scene id, TAB, a known corpus id"):
        Dataset.load(tmp_path)


@pytest.mark.parametrize("file", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "scenes.tsv"])
def test_no_file_may_be_in_another_encoding(tmp_path: Path, file: str) -> None:
    folder = write(tmp_path)
    (folder / "scenes.tsv").write_text("s4\t8\n")
    (folder / file).write_bytes((folder / file).read_text().encode("utf-16"))
    with pytest.raises(BadDataset, match=rf"{file} line 1: not UTF-8 .*; convert the file to UTF-8"):
        Dataset.load(folder)


def test_broken_bytes_name_the_line(tmp_path: Path) -> None:
    folder = write(tmp_path)
    whole = (folder / "corpus.jsonl").read_bytes()
    (folder / "corpus.jsonl").write_bytes(whole + b'{"_id": "\xff"}\n')
    with pytest.raises(BadDataset, match=r"corpus\.jsonl line 4: not UTF-8"):
        Dataset.load(folder)
    (folder / "corpus.jsonl").unlink()
    for broken in (gzip.compress(whole)[:-20], b"no gzip at all"):
        (folder / "corpus.jsonl.gz").write_bytes(broken)
        with pytest.raises(BadDataset, match=r"corpus\.jsonl\.gz cannot be read after line"):
            Dataset.load(folder)


def test_a_dataset_made_by_hand_is_checked_too(tmp_path: Path) -> None:
    tool = Tool("a", "b")
    with pytest.raises(BadDataset, match="two tools share an id"):
        Dataset("x", [tool, tool], {"q": "t"}, {})
    with pytest.raises(BadDataset, match=r"x, split test: 1 unknown tool ids: a/c"):
        Dataset("x", [tool], {"q": "t"}, {"test": {"q": ("a/c",)}})
    with pytest.raises(BadDataset, match=r"x, split test: 1 unknown request ids: r"):
        Dataset("x", [tool], {"q": "t"}, {"test": {"r": ("a/b",)}})
    with pytest.raises(BadDataset, match="a request without gold"):
        Dataset("x", [tool], {"q": "t"}, {"test": {"q": ()}})
    with pytest.raises(BadDataset, match="no request has a gold tool"):
        Dataset("x", [tool], {"q": "t"}, {"test": {}})
    with pytest.raises(BadDataset, match="no request 'r'"):
        Dataset("x", [tool], {"q": "t"}, {}).kind("r")
    with pytest.raises(BadDataset, match="no id may hold a tab"):
        Dataset("x", [tool], {"q\t": "t"}, {"test": {"q\t": ("a/b",)}}).save(tmp_path / "tab")
    clash = [Tool("a", "c", meta={"corpus_id": "a/b"}), tool]
    with pytest.raises(BadDataset, match=r"a/b and a/c claim the corpus id a/b"):
        Dataset("x", clash, {"q": "t"}, {}).save(tmp_path / "clash")
