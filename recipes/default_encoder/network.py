"""BERT networks and tokenised texts on one device, for training without loops over texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_STATES = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
_CLS, _SEP = 101, 102
_ALSO = (1012, 2036)  # a full stop, and "also"
_PARTS, _WIDTHS = 4, 32  # a batch is read in so many parts of similar length, as wide as a multiple of this
_DROPPED, _JOINED = 0.1, 0.3  # of the tokens of an altered text, and of altered texts
_LAYER = "encoder.layer."
_HEAD = 32  # the size of an attention head in MiniLM

Weights = dict[str, Tensor]


def read_weights(path: Path) -> Weights:
    """The tensors of a safetensors file in float32, without the pooler of pre-training."""
    from safetensors.torch import load_file

    return {name: tensor.float() for name, tensor in load_file(str(path)).items() if "position_ids" not in name}


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors in float16: half the size, and more than int8 keeps of them."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().half().cpu().contiguous() for name, tensor in weights.items()}, str(path))


def with_new_tokens(weights: Weights) -> Weights:
    """Weights with vectors near the mean of all tokens in the places that BERT left unused."""
    name = "embeddings.word_embeddings.weight"
    table = weights[name].clone()
    places = torch.tensor([*range(1, 100), *range(104, 999)])
    drawn = torch.randn((len(places), table.shape[1]), generator=torch.Generator().manual_seed(0))
    table[places] = table.mean(0) + 0.5 * table.std(0) * drawn
    return weights | {name: table}


def mean_of(several: Sequence[Weights]) -> Weights:
    """The mean of the weights of networks of one shape."""
    return {name: torch.stack([one[name] for one in several]).mean(0) for name in several[0]}


def mixed(weights: Weights, others: Weights, share: float) -> Weights:
    """Weights with a share of others in them."""
    return {name: (1 - share) * tensor + share * others[name].to(tensor.device) for name, tensor in weights.items()}


def bert(weights: Weights, layers: Sequence[int] | None = None) -> Any:
    """A BERT with these of the layers that `weights` has, in this order; with all of them where none are named."""
    from transformers import BertConfig, BertModel

    numbers = {int(name.removeprefix(_LAYER).partition(".")[0]) for name in weights if name.startswith(_LAYER)}
    layers = range(len(numbers)) if layers is None else layers
    words, size = weights["embeddings.word_embeddings.weight"].shape
    config = BertConfig(
        vocab_size=words,
        hidden_size=size,
        num_hidden_layers=len(layers),
        num_attention_heads=size // _HEAD,
        intermediate_size=len(weights[f"{_LAYER}0.intermediate.dense.bias"]),
        max_position_embeddings=len(weights["embeddings.position_embeddings.weight"]),
    )
    network = BertModel(config, add_pooling_layer=False)
    kept: Weights = {name: tensor for name, tensor in weights.items() if name.startswith("embeddings.")}
    for new, old in enumerate(layers):
        prefix = f"{_LAYER}{old}."
        kept |= {
            f"{_LAYER}{new}.{name.removeprefix(prefix)}": tensor
            for name, tensor in weights.items()
            if name.startswith(prefix)
        }
    missing = network.load_state_dict(kept, strict=False).missing_keys
    if any("position_ids" not in name for name in missing):
        raise ValueError(f"the weights lack {missing[:3]}; name those of a BERT")
    return network.to(DEVICE)


def set_dropout(network: Any, share: float) -> None:
    """Drop this share of the states of a BERT while it is trained."""
    network.config.hidden_dropout_prob = network.config.attention_probs_dropout_prob = share
    network.embeddings.dropout.p = share


class Texts:
    """Token ids of texts, without special tokens, padded to one width on the device."""

    def __init__(self, rows: Tensor, lengths: Tensor) -> None:
        """`rows` [n, width] int32, of which `lengths` [n] count."""
        self.rows, self.lengths = rows, lengths

    @classmethod
    def of(cls, tokens: NDArray[Any], ends: NDArray[Any], width: int) -> Texts:
        """Texts from all tokens in one array and the place where each text ends, cut to a width."""
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        lengths = np.minimum(ends - starts, width).astype(np.int64)
        places = np.minimum(starts[:, None] + np.arange(width), max(0, len(tokens) - 1))
        rows = np.where(np.arange(width) < lengths[:, None], tokens[places] if len(tokens) else 0, 0)
        return cls(torch.from_numpy(rows.astype(np.int32)).to(DEVICE), torch.from_numpy(lengths).to(DEVICE))

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self.lengths)

    def select(self, rows: Tensor) -> Texts:
        """Some of the texts."""
        return Texts(self.rows[rows], self.lengths[rows])

    @staticmethod
    def join(parts: Sequence[Texts]) -> Texts:
        """All texts of several of one width."""
        return Texts(torch.cat([one.rows for one in parts]), torch.cat([one.lengths for one in parts]))


def altered(texts: Texts) -> Texts:
    """Other texts of these tokens: of each a part at random, without some of its tokens, or parts of two in a row."""
    count, width = texts.rows.shape
    place = torch.arange(width, device=DEVICE)
    first = torch.arange(count, device=DEVICE)
    pairs = torch.stack([first, first.roll(1)])
    lengths = texts.lengths[pairs][:, :, None]
    cut = (torch.rand((2, 2, count, 1), device=DEVICE) * lengths / 2).long()
    kept = (place >= cut[0]) & (place < lengths - cut[1]) & (torch.rand((2, count, width), device=DEVICE) >= _DROPPED)
    kept[1] &= torch.rand((count, 1), device=DEVICE) < _JOINED
    wide, chosen = torch.cat(list(texts.rows[pairs]), 1), torch.cat(list(kept), 1)
    order = (~chosen).byte().argsort(dim=1, stable=True)[:, :width]
    total = chosen.sum(1).clamp(1, width)
    return Texts(torch.where(place < total[:, None], wide.gather(1, order), 0), total)


def single(texts: Texts, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and mask of [CLS] text [SEP]."""
    lengths = texts.lengths[rows][:, None]
    ids = functional.pad(texts.rows[rows].long(), (1, 1))
    ids[:, 0] = _CLS
    ids.scatter_(1, lengths + 1, _SEP)
    mask = torch.arange(ids.shape[1], device=DEVICE) < lengths + 2
    return ids * mask, mask


def paired(requests: Texts, asked: Tensor, documents: Texts, told: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and types of [CLS] request [SEP] document [SEP], cut as the cross-encoder cuts them where it serves.

    At most half of the limit is the request's, what it leaves is the document's.
    """
    first = requests.lengths[asked].clamp(max=limit // 2)[:, None]
    second = torch.minimum(documents.lengths[told][:, None], limit - 3 - first)
    total = first + second + 3
    place = torch.arange(limit, device=DEVICE)[None]
    left, right = requests.rows[asked].long(), documents.rows[told].long()
    from_left = left.gather(1, (place - 1).clamp(0, left.shape[1] - 1).expand(len(asked), -1))
    from_right = right.gather(1, (place - 2 - first).clamp(0, right.shape[1] - 1))
    in_left = (place >= 1) & (place <= first)
    in_right = (place >= first + 2) & (place < total - 1)
    ids = torch.where(in_left, from_left, torch.where(in_right, from_right, _SEP))
    ids[:, 0] = _CLS
    mask = place < total
    return ids * mask, mask, ((place >= first + 2) & mask).long()


class _Layers(nn.Module):
    """The layers of a BERT after its embeddings. They look at no value, so a GPU can record them.

    All states are bfloat16 on a GPU: what a step costs is reading and writing them. The weights stay float32.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.encoder, self._config = network.encoder, network.config
        self.train(network.training)

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """The last states."""
        states = embedded.to(_STATES)
        for layer in self.encoder.layer:
            states = self._attended(layer.attention, states, mask)
            states = self._added(layer.output, functional.gelu(_linear(states, layer.intermediate.dense)), states)
        return states

    def _attended(self, attention: Any, states: Tensor, mask: Tensor) -> Tensor:
        parts = (attention.self.query, attention.self.key, attention.self.value)
        weight, bias = (torch.cat([getattr(one, name) for one in parts]).to(_STATES) for name in ("weight", "bias"))
        heads = (3, self._config.num_attention_heads, _HEAD)
        query, key, value = functional.linear(states, weight, bias).unflatten(2, heads).permute(2, 0, 3, 1, 4)
        dropout = self._config.attention_probs_dropout_prob if self.training else 0.0
        found = functional.scaled_dot_product_attention(query, key, value, mask, dropout)
        return self._added(attention.output, found.transpose(1, 2).flatten(2), states)

    def _added(self, output: Any, found: Tensor, states: Tensor) -> Tensor:
        """What BERT calls the output of a part: a linear layer, added to the states before, and normalised."""
        norm = output.LayerNorm
        found = functional.dropout(_linear(found, output.dense), self._config.hidden_dropout_prob, self.training)
        weight, bias = norm.weight.to(_STATES), norm.bias.to(_STATES)
        return functional.layer_norm(states + found, norm.normalized_shape, weight, bias, norm.eps)


def _linear(states: Tensor, layer: nn.Linear) -> Tensor:
    return functional.linear(states, layer.weight.to(_STATES), layer.bias.to(_STATES))


class _Recordings:
    """What the layers of one network do to parts of batches, by part and shape."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._made: dict[tuple[int, ...], Callable[[Tensor, Tensor], Tensor]] = {}

    def of(self, network: Any, part: int, embedded: Tensor, mask: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The recording of a part of this shape; it is made at the first use."""
        key = (part, *embedded.shape)
        if key not in self._made:
            # Those of one part share memory: a step uses one of them.
            if part not in self._memory:
                self._memory[part] = torch.cuda.graph_pool_handle()
            like = torch.randn_like(embedded).requires_grad_(), torch.ones_like(mask)
            self._made[key] = torch.cuda.make_graphed_callables(_Layers(network), like, pool=self._memory[part])
        return self._made[key]


_RECORDED: WeakKeyDictionary[nn.Module, _Recordings] = WeakKeyDictionary()


def _layers(network: Any, part: int, embedded: Tensor, mask: Tensor) -> Tensor:
    """The last states of a part of a batch.

    Small networks leave a GPU waiting for the processor, which names one kernel after the other. So what a step of a
    training does to a part of this shape is recorded once, forward and backward, and replayed (a CUDA graph).
    """
    if DEVICE.type != "cuda" or not (network.training and torch.is_grad_enabled()):
        return _Layers(network)(embedded, mask)
    recorded = _RECORDED.setdefault(network, _Recordings())
    return recorded.of(network, part, embedded, mask)(embedded, mask)


def pooled(
    network: Any, ids: Tensor, mask: Tensor, types: Tensor | None, pool: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """What `pool` makes of the states and the mask of each text, [texts, hidden]; texts are read in parts by length.

    Little of a part is padding. Call it once for each step of a training: a recording holds the states of one batch.
    """
    lengths = mask.sum(1)
    parts = lengths.argsort().chunk(_PARTS)
    longest = torch.stack([lengths[rows].max() for rows in parts]).tolist()
    wide = functional.pad(
        torch.stack([ids, mask.long(), torch.zeros_like(ids) if types is None else types]), (0, _WIDTHS)
    )
    found = torch.zeros((len(ids), network.config.hidden_size), device=DEVICE)
    for part, (rows, most) in enumerate(zip(parts, longest, strict=True)):
        read, real, kinds = wide[:, rows, : -(-most // _WIDTHS) * _WIDTHS]
        counts = real > 0
        embedded = network.embeddings(input_ids=read, token_type_ids=kinds)
        states = _layers(network, part, embedded, counts[:, None, None, :])
        found = found.index_put((rows,), pool(states.float(), counts))
    return found


def _means(states: Tensor, mask: Tensor) -> Tensor:
    """Unit vectors: the means of the states of a text's tokens."""
    weights = mask[:, :, None].float()
    return functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


def embed(network: Any, *parts: tuple[Texts, Tensor]) -> tuple[Tensor, ...]:
    """Unit vectors of some rows of each of the texts."""
    read = [single(texts, rows) for texts, rows in parts]
    longest = max(ids.shape[1] for ids, _ in read)
    ids, mask = (
        torch.cat([functional.pad(pair[which], (0, longest - pair[which].shape[1])) for pair in read])
        for which in (0, 1)
    )
    return pooled(network, ids, mask, None, _means).split([len(rows) for _, rows in parts])


@torch.no_grad()
def embed_all(network: Any, texts: Texts, batch: int = 4096) -> Tensor:
    """Unit vectors of all texts, without dropout."""
    training = network.training
    network.eval()
    order = torch.argsort(texts.lengths)
    vectors = torch.zeros((len(texts), network.config.hidden_size), device=DEVICE)
    for rows in order.split(batch):
        (vectors[rows],) = embed(network, (texts, rows))
    network.train(training)
    return vectors


class TokenisedSet:
    """A catalogue and requests with gold documents."""

    def __init__(self, name: str, documents: Texts, requests: Texts, gold: NDArray[Any]) -> None:
        """`gold` has the (request, document) pairs."""
        self.name, self.documents, self.requests = name, documents, requests
        gold = gold[np.argsort(gold[:, 0], kind="stable")].astype(np.int64)
        counts = np.bincount(gold[:, 0], minlength=len(requests))
        table = np.full((len(requests), int(counts.max())), -1, np.int64)
        firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        table[gold[:, 0], np.arange(len(gold)) - firsts[gold[:, 0]]] = gold[:, 1]
        self.gold = torch.from_numpy(table).to(DEVICE)  # [requests, most], -1 where there are fewer
        self.counts = torch.from_numpy(counts).to(DEVICE)
        # Tools that no request needs do not compete: they would be unlearned.
        self.needed = torch.from_numpy(np.unique(gold[:, 1])).to(DEVICE)

    def some_gold(self, rows: Tensor) -> Tensor:
        """One gold document of each request, drawn at random."""
        drawn = (torch.rand(len(rows), device=DEVICE) * self.counts[rows].clamp(min=1)).long()
        return self.gold[rows].gather(1, drawn[:, None])

    def others(self, shape: tuple[int, ...]) -> Tensor:
        """Needed documents, drawn at random."""
        return self.needed[torch.randint(len(self.needed), shape, device=DEVICE)]


def combined(data: TokenisedSet, count: int, width: int, seed: int) -> TokenisedSet:
    """Requests that need the tools of two: one, a full stop, "also", and the other, cut to a width."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(len(data.requests), (2, count), generator=generator).to(DEVICE)
    lengths = data.requests.lengths[pairs].clamp(max=width // 2 - 1)
    place = torch.arange(width, device=DEVICE)[None]
    first, second = (data.requests.rows[one] for one in pairs)
    last = first.shape[1] - 1
    from_first = first.gather(1, place.clamp(max=last).expand(count, -1))
    from_second = second.gather(1, (place - lengths[0][:, None] - 2).clamp(0, last))
    rows = torch.where(place < lengths[0][:, None], from_first, from_second)
    for offset, token in enumerate(_ALSO):
        rows.scatter_(1, lengths[0][:, None] + offset, token)
    total = lengths.sum(0) + len(_ALSO)
    gold = torch.cat([data.gold[one] for one in pairs], 1)
    row, column = torch.nonzero(gold >= 0, as_tuple=True)
    told = torch.stack([row, gold[row, column]], 1).unique(dim=0).cpu().numpy()
    texts = Texts(torch.where(place < total[:, None], rows, 0), total)
    return TokenisedSet(f"{data.name}, combined", data.documents, texts, told)


@torch.no_grad()
def near_misses(network: Any, data: TokenisedSet, count: int, batch: int = 2048) -> Tensor:
    """Of each request the nearest documents that are not gold, [requests, count]; -1 where there are no more."""
    documents, requests = embed_all(network, data.documents)[data.needed], embed_all(network, data.requests)
    found = []
    for start in range(0, len(requests), batch):
        similar = requests[start : start + batch] @ documents.T
        fetched = min(count + data.gold.shape[1], similar.shape[1])
        nearest = data.needed[similar.topk(fetched, 1).indices]
        is_gold = (nearest[:, :, None] == data.gold[start : start + batch][:, None, :]).any(2)
        order = (torch.arange(fetched, device=DEVICE) + is_gold * fetched).argsort(1)[:, :count]
        picked, bad = nearest.gather(1, order), is_gold.gather(1, order)
        found.append(torch.where(bad, -1, picked))
    return torch.cat(found)


def optimiser(parameters: Sequence[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """AdamW; biases and scales are not decayed."""
    groups = [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": 0.01},
        {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=DEVICE.type == "cuda")


def set_rate(optimiser: torch.optim.Optimizer, rate: float, step: int, steps: int, warmup: float = 0.1) -> None:
    """A linear warm-up, then a linear decay to 0."""
    warm = max(1, int(steps * warmup))
    share = (step + 1) / warm if step < warm else (steps - step) / max(1, steps - warm)
    for group in optimiser.param_groups:
        group["lr"] = rate * share


def draw_order(sizes: Sequence[float], steps: int, seed: int, power: float = 0.5) -> list[int]:
    """Which set each step trains on: as often as the power of its size."""
    chances = np.asarray(sizes, float) ** power
    return np.random.default_rng(seed).choice(len(sizes), steps, p=chances / chances.sum()).tolist()
