"""What the code answers, written down: rankings, scores, reasons, verdicts and rendered schemas of every method.

`python -m tests.regression.record` writes the recording; `test_recorded_answers.py` holds the code to it. Nothing but
the functions at the end of this file knows how a retriever is called.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolscout.core import vendor_formats
from toolscout.core.answer import Allowed, Answer, Example, Hit
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.llm.scripted import Scripted, ScriptedReply
from toolscout.models.encoders.base import TextEncoder
from toolscout.papers.masstool.published import MasstoolPublished
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.centroid import Centroid
from toolscout.retrievers.colt import Colt
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.memory import Memory
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions
from toolscout.retrievers.toolgen import Toolgen
from toolscout.retrievers.toolweaver import Toolweaver
from toolscout.scout import Scout
from toolscout.stores.sqlite.store import SqliteStore

HOME = Path(__file__).parent
MODELS = HOME / "models"
RECORDED = HOME / "recorded"
K = 8
# What a request may look like besides plain sentences: names, near-names, misspelt words, talk, other scripts.
SPECIAL = (
    "get_weather",
    "please use create_issue and then list_issues",
    "run `send_message` for me",
    "create-issue",
    "wether forcast for tomorow in Lisbon",
    "shedule a meating with the hole team",
    "tell me a joke about tools",
    "hello there",
    "book a flight to Rome, find a hotel near the station and tell my team in Slack",
    "translate this page and email it to Anna; then add a reminder",
    "Wie wird das Wetter morgen in Berlin?",
    "明天天气怎么样",
    "zzzz qqqq xxxx",
    "search",
    "first do one thing. " * 40,
)
# The features of a processor that decide how int8 products are rounded.
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm", "sve")


class Hashed(TextEncoder):
    """An encoder without weights, the same on every machine: the sum of one fixed vector for each word."""

    fingerprint = "hashed-64"
    dimension = 64

    def encode_request(self, text: str) -> NDArray[np.float32]:
        total = np.full(self.dimension, 1e-3)
        for word in re.findall(r"\w+", text.lower().replace("_", " ")):
            total += _word(word)
        return (total / np.linalg.norm(total)).astype(np.float32)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self.encode_request(text) for text in texts])

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        for start in range(0, len(texts), 256):
            part = texts[start : start + 256]
            yield np.arange(start, start + len(part)), self.encode(part)


@cache
def _word(word: str) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
    return np.random.default_rng(seed).standard_normal(Hashed.dimension)


@cache
def bundled() -> Dataset:
    return Dataset.load(find_dataset("bundled"), ["dev", "test"])


@cache
def requests() -> tuple[str, ...]:
    """60 requests to the bundled catalogue: 45 of its own, and the special ones."""
    texts = list(bundled().requests.values())
    own = [texts[place] for place in np.linspace(0, len(texts) - 1, 60 - len(SPECIAL)).astype(int)]
    return (*own, *SPECIAL)


@cache
def limited() -> Allowed:
    """A caller who sees every other namespace of the bundled catalogue, and three tools of the others."""
    namespaces = sorted({tool.namespace for tool in bundled().tools})
    others = [tool.id for tool in bundled().tools if tool.namespace in namespaces[1::2]]
    return Allowed.of(namespaces[::2], others[::50][:3])


@cache
def feedback() -> tuple[Example, ...]:
    """What requests of the dev split used: of everybody and of two tenants."""
    split = bundled().split("dev")
    began = datetime(2026, 1, 1, tzinfo=UTC)
    found = []
    for place, ((_, text), gold) in enumerate(zip(split.requests, split.gold, strict=True)):
        rejected = split.gold[(place + 7) % len(split.gold)][:1] if place % 3 == 0 else ()
        tenant = ("", "", "ann", "bob")[place % 4]
        time = began + timedelta(days=place)
        found.append(Example(text, tuple(gold), tuple(set(rejected) - set(gold)), tenant, f"s{place % 3}", time))
    return tuple(found)


def words_and_vectors(**options: Any) -> Hybrid:
    return Hybrid(HybridOptions(**options), [Bm25(), Dense(encoder=Hashed())])


def scripted() -> Rewrite:
    """Rewrites by a language model that always answers the same."""
    answer = json.dumps({"queries": ["send an email to a contact", "look up the weather forecast"]})
    return Rewrite(RewriteOptions(depth=20), [words_and_vectors(depth=20)], Scripted([ScriptedReply(answer, "")]))


def learned(made: Any) -> Any:
    made.learn(list(feedback()))
    return made


METHODS: dict[str, Callable[[], Any]] = {
    "bm25": Bm25,
    "dense": lambda: Dense(encoder=Hashed()),
    "hybrid": words_and_vectors,
    "hybrid-shallow": lambda: words_and_vectors(depth=5),
    "hybrid-rrf": lambda: words_and_vectors(fusion="rrf"),
    "memory": lambda: learned(Memory(encoder=Hashed())),
    "centroid": lambda: learned(Centroid(encoder=Hashed())),
    "hybrid-memory": lambda: Hybrid(parts=[Bm25(), learned(Memory(encoder=Hashed()))]),
    "rewrite-rules": lambda: Rewrite(RewriteOptions(llm="rules"), [words_and_vectors()]),
    "rewrite-scripted": scripted,
    "masstool": lambda: learned(Masstool(encoder=Hashed())),
    "masstool-trained": lambda: Masstool.load(MODELS / "masstool", Hashed()),
    "colt-trained": lambda: Colt.load(MODELS / "colt", Hashed()),
    "masstool_published-trained": lambda: MasstoolPublished.load(MODELS / "masstool_published", Hashed()),
    "memory-trained": lambda: Memory.load(MODELS / "memory", Hashed()),
    "centroid-trained": lambda: Centroid.load(MODELS / "centroid", Hashed()),
    "dense-trained": lambda: load_model(MODELS / "hybrid" / "1-dense"),
    "hybrid-trained": lambda: load_model(MODELS / "hybrid"),
    "rewrite-trained": lambda: load_model(MODELS / "rewrite"),
    "toolgen-trained": lambda: Toolgen.load(MODELS / "toolgen", Hashed()),
    "toolgen-sets": lambda: Toolgen.load(MODELS / "toolgen-sets", Hashed()),
    "toolgen-semantic": lambda: Toolgen.load(MODELS / "toolgen-semantic", Hashed()),
    "toolweaver-trained": lambda: Toolweaver.load(MODELS / "toolweaver", Hashed()),
}
# Those whose numbers come out of an int8 network: they are the same on processors of one kind alone.
QUANTISED = (
    *("dense-trained", "hybrid-trained", "rewrite-trained", "toolweaver-trained", "scout-default"),
    *("toolgen-trained", "toolgen-sets", "toolgen-semantic"),
)
# Those over a few tools, since a language model reads each of them.
FEW = {
    "rewrite-trained": 60,
    "toolgen-trained": 60,
    "toolgen-sets": 60,
    "toolgen-semantic": 60,
    "toolweaver-trained": 60,
}
HEARS_TENANTS = ("memory", "hybrid-memory", "masstool")
PUBLISHED = {"toollens": ("test", 200), "toolbench": ("test", 100)}


def tools_of(name: str) -> list[Tool]:
    return list(bundled().tools[: FEW.get(name, len(bundled().tools))])


def of_method(name: str) -> dict[str, Any]:
    """What a method answers to the 60 requests: to one who sees all, to one who does not, and to a tenant."""
    retriever = METHODS[name]()
    if not len(retriever):
        retriever.add(tools_of(name))
    record = {"all": answers(retriever, None, ""), "limited": answers(retriever, limited(), "")}
    if name in HEARS_TENANTS:
        record["tenant"] = answers(retriever, None, "ann")
    return record


def of_scout(folder: Path, retriever: Retriever | None = None, count: int = 60) -> dict[str, Any]:
    """What Scout answers over the bundled catalogue, and how the tools of its answers are rendered."""
    store = folder / "tools.db"
    scout = Scout.open(store) if retriever is None else Scout(SqliteStore(store), retriever)
    with scout:
        scout.add(bundled().tools)
        for example in feedback()[:40]:
            scout.feedback(example)
        record: dict[str, Any] = {}
        for who, allowed in (("all", None), ("limited", limited())):
            found = [scout.search(text, K, allowed) for text in requests()[:count]]
            record[who] = [of_answer(answer) for answer in found]
            record[f"{who}, rendered"] = [_rendered(scout, answer) for answer in found[:12]]
        return record


def of_answer(answer: Answer) -> dict[str, Any]:
    """An answer as recorded; what stands among `hits` are the first of `considered`."""
    record = answer.to_dict()
    record["hits"] = len(answer.hits)
    del record["request"], record["cost"]
    return record


def _rendered(scout: Scout, answer: Answer) -> list[Any]:
    tools = scout.tools([hit.tool_id for hit in answer.considered[:3]])
    found = []
    for form in vendor_formats.FORMATS:
        for budget in (None, 200):
            rendered = vendor_formats.render(tools, form, budget)
            found.append([rendered.level, rendered.tokens, rendered.payload])
    return found


def published(name: str, split: str, count: int) -> dict[str, Any]:
    """Rankings over a published dataset: places in its corpus and scores, of words, vectors and both."""
    data = Dataset.load(find_dataset(name), [split])
    texts = [text for _, text in data.split(split).requests]
    chosen = [texts[place] for place in np.linspace(0, len(texts) - 1, count).astype(int)]
    places = {tool.id: place for place, tool in enumerate(data.tools)}
    namespaces = sorted({tool.namespace for tool in data.tools})
    allowed = Allowed.of(namespaces[::3])
    digests = {tool.digest(): tool.document() for tool in data.tools}
    vectors = dict(zip(digests, Hashed().encode(list(digests.values())), strict=True))
    record: dict[str, Any] = {}
    for method in ("bm25", "hybrid", "rewrite-rules"):
        retriever = METHODS[method]()
        retriever.add(data.tools, vectors)
        for who, seen in (("all", None), ("limited", allowed)):
            record[f"{method}, {who}"] = [
                [[places[hit.tool_id], number(hit.score)] for hit in search(retriever, text, 5, seen, "")]
                for text in chosen
            ]
    return record


def answers(retriever: Retriever, allowed: Allowed | None, tenant: str) -> list[dict[str, Any]]:
    """One record a request: hits with scores and reasons, and what else the retriever says of it."""
    found = []
    for text in requests():
        hits = search(retriever, text, K, allowed, tenant)
        record: dict[str, Any] = {"hits": [hit.to_dict() for hit in hits]}
        record |= {name: value for name, value in said(retriever, text, allowed, tenant).items() if value}
        found.append(record)
    return found


def number(value: float) -> float:
    return round(value, 9)


def processor() -> str:
    """What kind of processor this is, as far as int8 products go."""
    try:
        known = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    except OSError:
        known = set()
    return " ".join([platform.machine(), *(name for name in _FEATURES if name in known)])


def write(name: str, record: Any) -> None:
    RECORDED.mkdir(exist_ok=True)
    text = json.dumps({"processor": processor(), "record": record}, ensure_ascii=False, separators=(",", ":"))
    rounded = re.sub(r"-?\d+\.\d{10,}(?:e-?\d+)?", lambda found: repr(round(float(found[0]), 9)), text)
    (RECORDED / f"{name}.json.gz").write_bytes(gzip.compress(rounded.encode(), 9, mtime=0))


def read(name: str) -> tuple[str, Any]:
    """The processor that a recording was made on, and the recording."""
    found = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
    return found["processor"], found["record"]


# How a retriever is called.


def search(retriever: Retriever, text: str, k: int, allowed: Allowed | None, tenant: str) -> list[Hit]:
    return retriever.search([text], k, Scope(allowed, tenant=tenant))[0]


def said(retriever: Retriever, text: str, allowed: Allowed | None, tenant: str) -> dict[str, Any]:
    """How likely a tool is needed, how many are, and what was searched besides: where the method can tell."""
    rankings = retriever.rank([text], K, Scope(allowed, tenant=tenant))
    sets, need = retriever.as_many(rankings), rankings[0].need
    return {
        "need": None if need is None else number(need),
        "queries": list(rankings[0].queries),
        "notes": list(rankings[0].notes),
        "set": [tool_id for tool_id, _ in sets[0]] if sets else [],
    }
