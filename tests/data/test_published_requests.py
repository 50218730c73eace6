"""ToolBench's published requests are joined to a folder that has its tools: by name, once each, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolscout.cli.main import app
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.published_requests import NamedTool, PublishedRequest, join, read_published
from toolscout.errors import BadDataset


def tool(namespace: str, name: str, title: str, category: str, service: str = "") -> Tool:
    meta = {"category": category, "tool": service or namespace, "corpus_id": f"{category}/{namespace}/{name}".lower()}
    return Tool(namespace, name, description=title, title=title, meta=meta)


TOOLS = [
    tool("The_Cocktail_DB", "list_of_cocktails", "List of cocktails", "Food", "The Cocktail DB"),
    tool("Medium", "search_topics", "/search/topics", "Media"),
    tool("Weather", "now", "Now", "Weather"),
    tool("Weather", "now_2", "Now", "Weather"),
    tool("Search", "search", "Search", "Data"),
    tool("Search-2", "search", "Search", "News", "Search"),
    tool("Cafe", "menu", "Menü", "Food", "Café"),
]
COCKTAILS, TOPICS, NOW, DATA_SEARCH, NEWS_SEARCH, MENU = (TOOLS[at].id for at in (0, 1, 2, 4, 5, 6))
TEXTS = {"a": "Which cocktails are there?", "b": "What is the weather?", "c": "Find something."}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder of data with one request in each split."""
    qrels = {"train": {"a": (COCKTAILS,)}, "dev": {"b": (NOW,)}, "test": {"c": (DATA_SEARCH,)}}
    Dataset("toolbench", TOOLS, TEXTS, qrels).save(tmp_path / "toolbench")
    return tmp_path / "toolbench"


def api(category: str, tool_name: str, api_name: str) -> dict[str, object]:
    return {"category_name": category, "tool_name": tool_name, "api_name": api_name, "required_parameters": []}


LISTED = [api("Food", "The Cocktail DB", "List of cocktails"), api("News", "Search", "Search")]
QUERIES = [
    {
        "api_list": LISTED,
        "query": "Drinks, and what the papers say of them.",
        "relevant APIs": [["The Cocktail DB", "List of cocktails"], ["Search", "Search"]],
        "query_id": 7,
    },
    {"api_list": LISTED, "query": "find  SOMETHING.", "relevant APIs": [["Search", "Search"]], "query_id": 8},
    {"api_list": LISTED, "query": TEXTS["a"], "relevant APIs": [["Search", "Search"]], "query_id": 9},
    {
        "api_list": [api("Food", "Gone", "Old"), *LISTED],
        "query": "Something old, and drinks.",
        "relevant APIs": [["Gone", "Old"], ["The Cocktail DB", "List of cocktails"]],
    },
    {"api_list": LISTED, "query": ["no", "text"], "relevant APIs": [["Search", "Search"]]},
]


def conversation(text: str, action: str) -> dict[str, object]:
    said = [{"role": "user", "content": text, "loss": False}, {"role": "assistant", "content": action, "loss": True}]
    return {"conversations": said}


RECORDS = [
    conversation("Top stories of a topic, and the weather", "<<Medium&&/search/topics>>"),
    conversation("Top stories of a topic, and the weather", "<<Weather&&Now>>"),
    conversation("Top stories of a topic, and the weather", "<<Medium&&/search/topics>>"),
    conversation("Search it", "<<Search&&Search>>"),
    conversation("What do they serve?", "<<Cafe&&Menu>>"),
    conversation("An agent's turn", "I think that"),
]


def test_query_files_of_toolbench_are_joined(base: Path, tmp_path: Path) -> None:
    (tmp_path / "G1_query.json").write_text(json.dumps(QUERIES))
    before = Dataset.load(base)
    made = join(before, read_published(tmp_path / "G1_query.json"), "G1_query.json")
    assert (made.read, made.added, made.bare, made.incomplete) == (4, 1, 1, 1)
    assert made.known == {"test": 1, "train": 1}
    assert made.unmatched == {("Food / Gone / Old", "no tool of this name"): 1}
    # The category says which of two tools named Search it is; the order is that of the file.
    assert made.dataset.qrels["train"] == {"a": (COCKTAILS,), "published-0": (COCKTAILS, NEWS_SEARCH)}
    assert made.dataset.requests["published-0"] == "Drinks, and what the papers say of them."
    assert made.dataset.metadata["published-0"] == {"source": "G1_query.json"}
    for split in ("dev", "test"):
        assert made.dataset.digest(split) == before.digest(split)


@pytest.mark.parametrize("form", ["array", "lines"])
def test_records_of_toolgen_are_joined(base: Path, tmp_path: Path, form: str) -> None:
    text = json.dumps(RECORDS) if form == "array" else "\n".join(map(json.dumps, RECORDS))
    (tmp_path / "retrieval.json").write_text(text)
    made = join(Dataset.load(base), read_published(tmp_path / "retrieval.json"), "x")
    # A record for each pair: those of one request are joined. Without a category a name of two categories is no one's.
    new = {made.dataset.requests[key]: gold for key, gold in made.dataset.qrels["train"].items() if key != "a"}
    assert new == {"Top stories of a topic, and the weather": (TOPICS, NOW), "What do they serve?": (MENU,)}
    assert made.unmatched == {("Search / Search", "several tools of this name"): 1}
    assert (made.incomplete, made.bare) == (1, 1)


def test_folders_of_toolbenchs_retriever_are_joined(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "G1"
    folder.mkdir()
    document = json.dumps(api("Weather", "Weather", "Now")).replace('"', '""')
    (folder / "corpus.tsv").write_text(f'docid\tdocument_content\n5\t"{document}"\n')
    (folder / "train.query.txt").write_text("1\tIs it raining?\n1\tIs it raining?\n2\tNo document of this\n")
    (folder / "qrels.train.tsv").write_text("1\t0\t5\t1\n2\t0\t6\t1\n")
    made = join(Dataset.load(base), read_published(folder), "G1")
    assert made.dataset.qrels["train"]["published-0"] == (NOW,)
    assert (made.added, made.incomplete) == (1, 1)
    (folder / "qrels.train.tsv").write_text("1\t0\t5\n")
    with pytest.raises(BadDataset, match=r"qrels\.train\.tsv row 1: 4 cells are needed, got 3"):
        list(read_published(folder))
    (folder / "corpus.tsv").unlink()
    with pytest.raises(BadDataset, match=r"has no corpus\.tsv; name a query file of ToolBench"):
        list(read_published(folder))


def test_a_record_of_no_form_is_counted_and_one_without_a_list_is_read(base: Path, tmp_path: Path) -> None:
    relevant = {"query": "gone", "relevant APIs": [["Gone", "Old"]]}
    (tmp_path / "x.json").write_text(json.dumps([QUERIES[0], relevant, {}, 1]))
    made = join(Dataset.load(base), read_published(tmp_path / "x.json"), "x")
    assert (made.bare, made.incomplete, list(made.unmatched)) == (2, 1, [("Gone / Old", "no tool of this name")])


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1, {}]", "no record with api_list or conversations"), ("[", "not a JSON array"), ("{", "line 1: not JSON")],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadDataset, match=message):
        list(read_published(tmp_path / "x.json"))
    with pytest.raises(BadDataset, match="cannot be read"):
        list(read_published(tmp_path / "nowhere.json"))


def test_requests_of_which_none_is_new_say_why(base: Path) -> None:
    message = r"none of 1 requests is new in toolbench, which has 0 of them; tools that were not found: Gone / Old"
    with pytest.raises(BadDataset, match=message):
        join(Dataset.load(base), [PublishedRequest("Hello?", (NamedTool("", "Gone", "Old"),))], "x")


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    return done.exit_code, " ".join(done.output.split())


def test_the_command_writes_a_new_folder_and_names_what_it_left_out(base: Path, tmp_path: Path) -> None:
    (tmp_path / "G1_query.json").write_text(json.dumps(QUERIES))
    (tmp_path / "retrieval.json").write_text(json.dumps(RECORDS))
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    files = ("--requests", tmp_path / "G1_query.json", "--requests", tmp_path / "retrieval.json")
    out = tmp_path / "toolbench-all"
    code, said = run("import", *files, "--onto", base, "--out", out)
    assert code == 0, said
    assert "requests: 3 new ones in train, of 7 read" in said
    assert "left out: 1 request that test of toolbench has" in said
    assert "left out: 2 records without a request or without a tool" in said
    assert "left out: 2 requests with a tool that was not found in toolbench" in said
    assert "not found: 2 tools, all named in" in said
    named = [json.loads(line) for line in (out / "unmatched.jsonl").read_text().splitlines()]
    assert {(one["tool"], one["why"], one["requests"]) for one in named} == {
        ("Food / Gone / Old", "no tool of this name", 1),
        ("Search / Search", "several tools of this name", 1),
    }
    made = Dataset.load(out)
    assert len(made.qrels["train"]) == 4
    assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before
    code, said = run("import", *files, "--onto", base, "--out", out)
    assert (code, "is not an empty folder" in said) == (2, True)
    assert Dataset.load(out).digest() == made.digest()


def test_the_command_says_what_to_pass(base: Path, tmp_path: Path) -> None:
    for wrong in (["--onto", base], ["--sharegpt", "x", "--onto", base], ["--requests", "x"], []):
        code, said = run("import", *wrong, "--out", tmp_path / "out")
        assert (code, "--requests FILE and --onto FOLDER for requests" in said) == (2, True)
