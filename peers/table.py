"""The peers: which adapter each runs, in which environment, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from toolscout.errors import BadRequest

PACKAGE = "toolscout"
WORDS, VECTORS, BOTH = "words", "vectors", "words and vectors"


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """One line of the comparison: a library with the search of its own, or one of its searches.

    `kind`: what is compared (words, vectors, or both). `permissions`: how it limits a search to what a caller may use,
    by its own documentation; "" where it does not. `weights`: it is given the folder of the published MiniLM.
    `needs`: what its own default would need and this machine cannot give it; such a peer is not run.
    """

    name: str
    adapter: str
    kind: str
    permissions: str = ""
    environment: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: bool = False
    needs: str = ""

    @property
    def requirements(self) -> str:
        """The name of the file of requirements, and of the environment."""
        return self.environment or self.adapter


def _own(retriever: str, kind: str) -> PeerSpec:
    options = {"retriever": retriever}
    return PeerSpec(f"{PACKAGE} {retriever}", PACKAGE, kind, "namespaces and tools", options=options)


_with_model = partial(PeerSpec, weights=True)

PEERS = {
    peer.name: peer
    for peer in (
        _own("bm25", WORDS),
        _own("dense", VECTORS),
        _own("hybrid", BOTH),
        _with_model(
            f"{PACKAGE} hybrid minilm",
            PACKAGE,
            BOTH,
            "namespaces and tools",
            f"{PACKAGE}_encoder",
            {"retriever": "hybrid", "published": True},
        ),
        PeerSpec("bm25s", "bm25s", WORDS),
        PeerSpec("rank_bm25", "rank_bm25", WORDS),
        PeerSpec("tantivy", "tantivy", WORDS),
        PeerSpec("sqlite_fts5", "sqlite_fts5", WORDS),
        _with_model("minilm", "minilm", VECTORS),
        PeerSpec("fastmcp bm25", "fastmcp", WORDS, "checks of the server"),
        PeerSpec("fastmcp regex", "fastmcp", WORDS, "checks of the server", options={"transform": "regex"}),
        PeerSpec("ratel bm25", "ratel", WORDS),
        _with_model("ratel semantic", "ratel", VECTORS, options={"method": "semantic"}),
        _with_model("ratel hybrid", "ratel", BOTH, options={"method": "hybrid"}),
        PeerSpec("litellm keyword", "litellm", WORDS, "keys, teams"),
        _with_model("litellm semantic", "litellm", VECTORS, "keys, teams", "litellm_semantic", {"semantic": True}),
        PeerSpec("livekit bm25", "livekit", WORDS),
        PeerSpec("livekit keyword", "livekit", WORDS, options={"strategy": "Keyword"}),
        PeerSpec("toolregistry", "toolregistry", WORDS),
        _with_model("chroma", "chroma", VECTORS, "filters over metadata"),
        _with_model("llamaindex", "llamaindex", VECTORS),
        _with_model("langgraph-bigtool", "langgraph", VECTORS, "namespaces, filters"),
        PeerSpec("haystack", "haystack", WORDS, "a list of names"),
        PeerSpec("pydantic-ai", "pydantic_ai", WORDS, "a filtered toolset"),
        PeerSpec("tooluniverse", "tooluniverse", WORDS, "categories"),
        PeerSpec("semantic-tool-router", "semantic_tool_router", WORDS, "labels of tools"),
        _with_model(
            "semantic-tool-router minilm",
            "semantic_tool_router",
            BOTH,
            "labels of tools",
            "semantic_tool_router_model",
            {"model": True},
        ),
        _with_model("toolpickr", "toolpickr", BOTH),
    )
}


def find_peer(name: str) -> PeerSpec:
    """Return a peer by its name; raises BadRequest where there is none."""
    if name not in PEERS:
        raise BadRequest(f"there is no peer {name!r}; use one of: {', '.join(PEERS)}")
    return PEERS[name]
