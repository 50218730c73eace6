"""A trie of the token sequences of tool ids, for constrained decoding; tools can be added, removed and filtered.

No id is a prefix of another, so a node is either a leaf, which is a tool, or an inner node, never both.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, KeysView, Sequence
from typing import Final, NamedTuple

import numpy as np

from toolscout.core.arrays import Bools, Ints
from toolscout.errors import BadModel, UnknownTool

_LEAF: Final[dict[int, int]] = {}  # the children of every tool's node: a leaf never gains any


class Branch(NamedTuple):
    """The children of a node: token tokens[i] (ascending) leads to the node nodes[i]. The arrays are read-only."""

    tokens: Ints
    nodes: Ints
    leaves: Ints
    """The positions, in both arrays, of children that are tools."""
    inner: Ints
    """The positions of children that have children themselves."""


class Trie:
    """A trie from token sequences to tools. No thread may read it while another one changes it."""

    ROOT: Final = 0

    def __init__(self) -> None:
        """Begin without tools."""
        self.version = 0
        """The number of changes so far, to tell whether something computed from the trie is out of date."""
        self._children: list[dict[int, int]] = [{}]
        self._keys: list[str | None] = [None]
        self._parents = array("q", [0])
        self._tokens = array("q", [-1])
        self._is_leaf = bytearray(1)
        self._free: list[int] = []
        self._leaves: dict[str, int] = {}
        self._branches: dict[int, Branch] = {}
        self._changed: dict[int, set[int]] = {}  # by node: tokens whose child differs from the cached branch

    def __len__(self) -> int:
        """How many tools there are."""
        return len(self._leaves)

    def __contains__(self, key: object) -> bool:
        """Whether this tool has an id."""
        return key in self._leaves

    def keys(self) -> KeysView[str]:
        """The tools, in the order they were inserted."""
        return self._leaves.keys()

    def tokens_of(self, key: str) -> tuple[int, ...]:
        """The token sequence of a tool; raises UnknownTool."""
        if key not in self._leaves:
            raise UnknownTool(f"{key!r} has no id; add the tool first")
        node, tokens = self._leaves[key], []
        while node != self.ROOT:
            tokens.append(self._tokens[node])
            node = self._parents[node]
        return tuple(reversed(tokens))

    def insert(self, key: str, tokens: Sequence[int]) -> None:
        """Give a tool its token sequence, in place of the one it has.

        Raises BadModel, and changes nothing, where the sequence is empty, is a prefix of another, or extends another.
        """
        path = tuple(int(token) for token in tokens)
        if not path or min(path) < 0:
            raise BadModel(f"the id of {key!r} is {list(path)}; it needs one token or more, none below 0")
        old = self.tokens_of(key) if key in self._leaves else None
        if path == old:
            return
        if old is not None:
            self._drop(key)
        try:
            self._add(key, path)
        except BadModel:
            if old is not None:
                self._add(key, old)
            raise
        self.version += 1

    def remove(self, key: str) -> None:
        """Remove a tool and the nodes that lead to no other tool; unknown tools are ignored."""
        if key in self._leaves:
            self._drop(key)
            self.version += 1

    def branch(self, node: int) -> Branch:
        """The children of a node; the same object until they change."""
        known, changed = self._branches.get(node), self._changed.get(node)
        if known is not None and not changed:
            return known
        children = self._children[node]
        if known is None or changed is None:
            tokens = np.fromiter(children.keys(), np.int64, len(children))
            nodes = np.fromiter(children.values(), np.int64, len(children))
            order = np.argsort(tokens, kind="stable")
            tokens, nodes = tokens[order], nodes[order]
        else:
            tokens, nodes = _patch(known, children, sorted(changed))
        is_leaf = np.frombuffer(self._is_leaf, np.bool_)[nodes]
        branch = Branch(tokens, nodes, np.flatnonzero(is_leaf), np.flatnonzero(~is_leaf))
        for part in branch:
            part.flags.writeable = False
        self._branches[node] = branch
        self._changed.pop(node, None)
        return branch

    def children(self, node: int) -> Ints:
        """The tokens that may follow a node, ascending; the same array until they change."""
        return self.branch(node).tokens

    def step(self, node: int, token: int) -> int | None:
        """The child of a node by a token; None where there is none."""
        return self._children[node].get(token)

    def key(self, node: int) -> str | None:
        """The tool at a leaf; None at an inner node."""
        return self._keys[node]

    def settle(self, node: int) -> tuple[int, tuple[int, ...]]:
        """Descend as long as a node has exactly one child; gives back the node reached and the tokens passed."""
        tokens = []
        while len(self._children[node]) == 1:
            ((token, node),) = self._children[node].items()
            tokens.append(token)
        return node, tuple(tokens)

    def exhausted(self, keys: Iterable[str]) -> dict[int, list[int]]:
        """By node, the tokens under which there are no tools but these."""
        gone: dict[int, list[int]] = {}
        for key in keys:
            node = self._leaves[key]
            while node != self.ROOT:
                parent = self._parents[node]
                gone.setdefault(parent, []).append(self._tokens[node])
                if len(gone[parent]) < len(self._children[parent]):
                    break
                node = parent
        return gone

    def pruned(self, permits: Callable[[str], bool]) -> PrunedTrie:
        """A view of the trie with the permitted tools alone. Calls `permits` once for every tool."""
        return PrunedTrie(self, permits)

    def leading_to(self, permits: Callable[[str], bool]) -> Bools:
        """For each node, whether a permitted tool is at it or below it."""
        count = len(self._leaves)
        permitted = np.fromiter((bool(permits(key)) for key in self._leaves), np.bool_, count)
        level = np.fromiter(self._leaves.values(), np.int64, count)[permitted]
        parents = np.array(self._parents, dtype=np.int64)
        leads = np.zeros(len(parents), np.bool_)
        while len(level):
            leads[level] = True
            level = np.unique(parents[level])
            level = level[~leads[level]]
        return leads

    def _add(self, key: str, path: tuple[int, ...]) -> None:
        node = self.ROOT
        for depth, token in enumerate(path):
            child = self._children[node].get(token)
            if child is None:
                break
            node = child
            other = self._keys[node]
            if other is not None and depth + 1 < len(path):
                raise BadModel(f"the id of {other!r} is the beginning of that of {key!r}; give one of them another id")
            if depth + 1 == len(path):
                relation = "is also that" if other is not None else "is the beginning of that"
                raise BadModel(f"the id of {key!r} {relation} of {self._any_tool(node)!r}; give one of them another id")
        for place in range(depth, len(path)):
            node = self._grow(node, path[place], leaf=place + 1 == len(path))
        self._keys[node] = key
        self._leaves[key] = node

    def _any_tool(self, node: int) -> str | None:
        """Any tool at a node or below it."""
        while self._children[node]:
            node = next(iter(self._children[node].values()))
        return self._keys[node]

    def _grow(self, parent: int, token: int, leaf: bool) -> int:
        if self._free:
            node = self._free.pop()
        else:
            node = len(self._children)
            self._children.append(_LEAF)
            self._keys.append(None)
            self._parents.append(0)
            self._tokens.append(0)
            self._is_leaf.append(0)
        self._children[node] = _LEAF if leaf else {}
        self._parents[node], self._tokens[node], self._is_leaf[node] = parent, token, leaf
        self._children[parent][token] = node
        self._mark_changed(parent, token)
        return node

    def _drop(self, key: str) -> None:
        node = self._leaves.pop(key)
        while node != self.ROOT and not self._children[node]:
            parent, token = self._parents[node], self._tokens[node]
            del self._children[parent][token]
            self._mark_changed(parent, token)
            self._children[node], self._keys[node], self._is_leaf[node] = _LEAF, None, 0
            self._branches.pop(node, None)
            self._changed.pop(node, None)
            self._free.append(node)
            node = parent

    def _mark_changed(self, node: int, token: int) -> None:
        if node in self._branches:
            self._changed.setdefault(node, set()).add(token)


class PrunedTrie:
    """A view of a trie with the permitted tools alone. It is computed again when the trie has changed."""

    def __init__(self, trie: Trie, permits: Callable[[str], bool]) -> None:
        """Call `permits` for every tool of the trie."""
        self._trie, self._permits = trie, permits
        self.version = -1
        """The version of the trie that this view was computed from."""
        self._refresh()

    def keeps(self, node: int) -> bool:
        """Whether a permitted tool is at this node or below it."""
        self._refresh()
        return bool(self._leads[node])

    def branch(self, node: int) -> Branch:
        """All children of a node, permitted or not; `leaves` and `inner` have the permitted ones alone."""
        self._refresh()
        known = self._branches.get(node)
        if known is None:
            tokens, nodes, leaves, inner = self._trie.branch(node)
            permitted = self._leads[nodes]
            known = self._branches[node] = Branch(tokens, nodes, leaves[permitted[leaves]], inner[permitted[inner]])
        return known

    def children(self, node: int) -> Ints:
        """The tokens that may follow a node, ascending."""
        branch = self.branch(node)
        permitted: Ints = branch.tokens[np.sort(np.concatenate([branch.leaves, branch.inner]))]
        return permitted

    def _refresh(self) -> None:
        if self.version != self._trie.version:
            self._leads = self._trie.leading_to(self._permits)
            self._branches: dict[int, Branch] = {}
            self.version = self._trie.version


def _patch(known: Branch, children: dict[int, int], changed: list[int]) -> tuple[Ints, Ints]:
    """The tokens and nodes of a branch after some of its tokens changed, without sorting all of them again."""
    unchanged = ~np.isin(known.tokens, changed, assume_unique=True)
    tokens, nodes = known.tokens[unchanged], known.nodes[unchanged]
    added = [token for token in changed if token in children]
    places = np.searchsorted(tokens, added)
    return np.insert(tokens, places, added), np.insert(nodes, places, [children[token] for token in added])
