"""The towers' loss: what a request may know of itself, who competes, and each part against a plain form of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from toolscout.errors import BadModel
from toolscout.models.tower import unit
from toolscout.retrievers.tower.options import ColtOptions, MasstoolOptions
from toolscout.training import losses
from toolscout.training.encoder_options import GraphOptions, NeighbourOptions
from toolscout.training.tower import (
    Batch,
    Objective,
    RequestGraph,
    TowerNetwork,
    TowerOptions,
    TrainingRequests,
    nearest,
    neighbour_votes,
    whole,
)

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
CPU = torch.device("cpu")
D, TOOLS = 10, 7
GOLD = [[0, 1], [1, 2], [0, 1], [3], [2, 4], [3], [1, 2], [4, 5]]


def known(gold: list[list[int]] = GOLD) -> TrainingRequests:
    numbers: dict[tuple[int, ...], int] = {}
    scenes = [numbers.setdefault(tuple(few), len(numbers)) for few in gold]
    return TrainingRequests([np.array(few) for few in gold], np.array(scenes), TOOLS)


def vectors(count: int, seed: int) -> Tensor:
    return torch.from_numpy(unit(np.random.default_rng(seed).normal(size=(count, D)).astype(np.float32)))


REQUESTS, DOCUMENTS, PROMPTS = vectors(len(GOLD), 0), vectors(TOOLS, 1), vectors(3, 2)


def objective(about: TrainingRequests | None = None, **changed: Any) -> Objective:
    """Nothing random, all eight requests near enough, numbers that are not where they begin."""
    calm = {"edge_dropout": 0.0, "absent": 0.0, "contrastive": 0.0, "epsilon": -1.0, "neighbours": 5, "hidden": 4}
    options = MasstoolOptions(**{**calm, **changed})
    parts = TowerOptions(options, options, options)
    torch.manual_seed(3)
    net = TowerNetwork(D, parts, CPU, maps=False)
    with torch.no_grad():
        for parameter in net.numbers.values():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    around = RequestGraph(about or known(), parts, CPU)
    around.refresh(REQUESTS, REQUESTS, DOCUMENTS, 0.0)
    return Objective(net, around)


def batch(picked: list[int], rows: list[int] | None = None, gold: list[list[int]] = GOLD) -> Batch:
    rows = list(range(TOOLS)) if rows is None else rows
    wanted = [[float(row in gold[i]) for row in rows] for i in picked]
    return Batch(torch.tensor(picked), torch.tensor(rows), torch.tensor(wanted))


def loss(made: Objective, one: Batch, prompts: Tensor | None = None) -> float:
    own = REQUESTS[one.picked]
    return made(one, own, own, DOCUMENTS[one.rows], PROMPTS[:0] if prompts is None else prompts).item()


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("transfer", ["gating", "none", "cross_attention"])
def test_the_gold_of_a_request_does_not_reach_its_score(layers: int, transfer: str) -> None:
    asked = batch([0, 4])
    before = loss(objective(layers=layers, transfer=transfer), asked)
    for others in ([5, 6], [3]):
        changed = [others if i in (0, 4) else few for i, few in enumerate(GOLD)]
        again = objective(known(changed), layers=layers, transfer=transfer)
        assert loss(again, asked) == pytest.approx(before, abs=1e-6)
    elsewhere = [[5, 6] if i == 2 else few for i, few in enumerate(GOLD)]
    assert abs(loss(objective(known(elsewhere), layers=layers, transfer=transfer), asked) - before) > 1e-4


def test_the_score_is_that_of_the_plain_form() -> None:
    """One request, written out: its neighbours, their views without its edges, the votes, the softmax."""
    cosines = REQUESTS @ REQUESTS[0]
    cosines[0] = -2
    order = cosines.argsort(descending=True).tolist()
    epsilon = cosines[order[1:3]].mean().item()
    best = order[:2]  # the third is asked for, and too far
    made = objective(transfer="none", neighbours=3, epsilon=epsilon)
    net, around = made.net, made.around
    kept = around.tool_edges.left != 0
    gathered = around.gather(kept, around.scene_edges.left != 0)
    total, votes = REQUESTS[0].clone(), torch.zeros(TOOLS)
    for view, found in enumerate((gathered.by_tools, gathered.by_scenes)):
        keys = [REQUESTS[0], *(functional.normalize(REQUESTS[i] + found[i], dim=0) for i in best)]
        logits = torch.stack([REQUESTS[0] @ net.numbers["attend"][view] @ key for key in keys])
        weights = (logits + net.numbers["own"][view] * torch.eye(len(keys))[0]).softmax(0)
        mean = torch.stack([w * key for w, key in zip(weights, keys, strict=True)]).sum(0)
        total = total + net.positive("search")[view] * mean / mean.norm()
        if view == 0:
            for weight, i in zip(weights[1:], best, strict=True):
                votes[GOLD[i]] += weight.detach()
    tools = functional.normalize(DOCUMENTS + net.positive("graph") * gathered.tools, dim=1)
    scores = tools @ total + net.positive("votes") * votes
    shares = (net.numbers["temperature"].exp() * scores).log_softmax(0)
    assert loss(made, batch([0])) == pytest.approx(-shares[GOLD[0]].mean().item(), rel=1e-5)


def test_the_loss_is_the_one_that_was_chosen() -> None:
    made = objective(loss="sigmoid", neighbours=0, layers=0)
    net, one = made.net, batch([3, 4])
    scores = REQUESTS[[3, 4]] @ DOCUMENTS.T
    expected = losses.sigmoid(net.numbers["temperature"].exp() * (scores - net.numbers["undecided"]), one.wanted)
    assert loss(made, one) == pytest.approx(expected.item(), rel=1e-5)


def test_votes_are_those_of_a_loop() -> None:
    random = np.random.default_rng(4)
    gold = [[sorted(random.choice(TOOLS, random.integers(1, 4), replace=False)) for _ in range(3)] for _ in range(5)]
    padded = torch.full((5, 3, 3), TOOLS)
    attention, candidates = torch.from_numpy(random.random((5, 3)).astype(np.float32)), [6, 0, 3, 2]
    expected = torch.zeros(5, len(candidates))
    for row, neighbours in enumerate(gold):
        for place, few in enumerate(neighbours):
            padded[row, place, : len(few)] = torch.tensor(few)
            for column, tool in enumerate(candidates):
                expected[row, column] += attention[row, place] * (tool in few)
    column = torch.full((TOOLS + 1,), 9)
    torch.testing.assert_close(neighbour_votes(padded, attention, torch.tensor(candidates), column), expected)


def test_detection_is_plain_binary_cross_entropy() -> None:
    made, one = objective(detection=0.7), batch([1, 4, 6])
    states = made.net.states(torch.cat([REQUESTS[[1, 4, 6]], PROMPTS]))
    plain = functional.binary_cross_entropy_with_logits(made.net.needs(states), torch.tensor([1.0] * 3 + [0.0] * 3))
    assert loss(made, one, PROMPTS) - loss(made, one) == pytest.approx(0.7 * plain.item(), abs=1e-5)


def agreement(first: Tensor, second: Tensor, scenes: list[int], temperature: float) -> float:
    """InfoNCE by loops: those of the same scene are left out of the others."""
    found = []
    for i, one in enumerate(functional.normalize(first, dim=1)):
        logits = functional.normalize(second, dim=1) @ one / temperature
        among = [j for j in range(len(scenes)) if j == i or scenes[j] != scenes[i]]
        found.append(-(logits[i] - logits[among].logsumexp(0)).item())
    return sum(found) / len(found)


def test_a_scene_that_comes_twice_is_no_wrong_answer() -> None:
    weight, temperature = 0.5, 0.2
    picked = [0, 2, 3, 5, 7]  # 0 and 2 are of one scene, 3 and 5 of another
    with_views = objective(contrastive=weight, contrast=temperature)
    one, views = batch(picked), with_views.around.whole
    scenes = [int(with_views.around.scene[i]) for i in picked]
    assert scenes[0] == scenes[1] != scenes[4]
    first = agreement(
        REQUESTS[picked] + views.by_tools[picked], REQUESTS[picked] + views.by_scenes[picked], scenes, temperature
    )
    of_scene = {scenes[0]: [0, 1], scenes[2]: [3], scenes[4]: [4, 5]}
    means = torch.stack([DOCUMENTS[few].mean(0) for few in of_scene.values()])
    gathered = torch.stack([views.tools[few].mean(0) for few in of_scene.values()])
    numbers = list(of_scene)
    second = agreement(means + gathered, means + views.scenes[numbers], numbers, temperature)
    found = loss(with_views, one) - loss(objective(), one)
    assert found == pytest.approx(weight * (first + second) / 2, abs=1e-5)


def test_a_request_made_up_of_two_has_no_neighbours_and_no_scene() -> None:
    alone = torch.tensor([True, False, False])
    both = replace_wanted(batch([0, 3, 7]), 0, [0, 1, 3])
    both.alone = alone
    single = objective(contrastive=0.5)
    without = batch([3, 7])
    apart = loss(objective(contrastive=0.5), without) - loss(objective(), without)
    found = loss(single, both) - loss(objective(), both)
    # The views of the other two agree as they do without it; the whole graph is the same.
    assert found == pytest.approx(apart, abs=1e-5)
    asked, _ = single.net.attend(
        REQUESTS[:1], single.net.states(REQUESTS[:1]), torch.zeros(2, 1, 5, D), torch.zeros(1, 5, dtype=torch.bool)
    )
    torch.testing.assert_close(asked, REQUESTS[:1])
    both.alone = torch.ones(3, dtype=torch.bool)
    assert np.isfinite(loss(single, both))


def replace_wanted(one: Batch, place: int, gold: list[int]) -> Batch:
    wanted = one.wanted.clone()
    wanted[place] = 0
    wanted[place, gold] = 1
    return Batch(one.picked, one.rows, wanted)


def test_a_tool_that_is_absent_is_scored_as_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = objective()
    absent = torch.zeros(TOOLS, dtype=torch.bool)
    absent[[1, 3]] = True
    monkeypatch.setattr(made, "_draw_absent_tools", lambda: absent)
    seen: dict[str, Tensor] = {}

    def kept(scores: Tensor, wanted: Tensor) -> Tensor:
        seen["scores"] = scores
        return scores.sum()

    monkeypatch.setattr(made, "_retrieval", kept)
    loss(made, batch([4]))
    # Only request 7 used neither of them: it alone may be a neighbour.
    rows, near = torch.tensor([[7]]), torch.tensor([[True]])
    gathered = made.around.gather(
        (made.around.tool_edges.left != 4) & ~absent[made.around.tool_edges.right],
        made.around.scene_edges.left == 7,
    )
    assert 7 in made.around.nearest[4].tolist()
    asked, attention = made.net.attend(
        REQUESTS[[4]], made.net.states(REQUESTS[[4]]), made.around.keys(gathered, rows), near
    )
    assert gathered.tools[absent].eq(0).all()
    tools = functional.normalize(DOCUMENTS + made.net.positive("graph") * gathered.tools, dim=1)
    expected = asked @ tools.T + made.net.numbers["new_bonus"] * absent
    expected[0, [4, 5]] += made.net.positive("votes") * attention[0, 0]
    torch.testing.assert_close(seen["scores"], expected)


def test_absent_tools_and_lost_edges_are_drawn_anew() -> None:
    made = objective(absent=0.5, edge_dropout=0.5)
    torch.manual_seed(0)
    drawn = [made._draw_absent_tools() for _ in range(20)]
    assert not any(one[6] for one in drawn)  # nobody used it: it is new anyway
    assert 0.3 < torch.stack(drawn)[:, :6].float().mean() < 0.7
    assert len({loss(made, batch([0, 3])) for _ in range(5)}) > 1


def test_the_share_of_edges_that_is_kept_is_the_same_each_time() -> None:
    options = MasstoolOptions(edges=0.5)
    parts = TowerOptions(options, options, options)
    first, again = (RequestGraph(known(), parts, CPU) for _ in range(2))
    assert 0 < len(first.tool_edges.left) < sum(map(len, GOLD))
    assert torch.equal(first.tool_edges.left, again.tool_edges.left)
    assert torch.equal(first.scene_edges.left, again.scene_edges.left)


def test_a_pools_own_requests_do_not_find_themselves() -> None:
    rows, cosines = nearest(REQUESTS, REQUESTS, 20, itself=False)
    assert rows.shape == (8, 7)
    assert all(i not in row for i, row in enumerate(rows.tolist()))
    torch.testing.assert_close(cosines, (REQUESTS[:, None] * REQUESTS[rows]).sum(2))
    assert nearest(REQUESTS, REQUESTS, 2)[0][:, 0].tolist() == list(range(8))
    assert nearest(REQUESTS[:1], REQUESTS[:1], 5, itself=False)[0].shape == (1, 0)


def test_the_whole_graph_is_that_of_the_surroundings() -> None:
    made = objective()
    found = whole(known(), made.options, REQUESTS.numpy(), DOCUMENTS.numpy())
    for array, tensor in zip(found, (made.around.whole.by_tools, made.around.whole.by_scenes, made.around.whole.tools),
                             strict=True):  # fmt: skip
        np.testing.assert_allclose(array, tensor, atol=1e-6)
    assert not found[2][6].any()


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        (GraphOptions, {"layers": 4}, "layers must be 0 to 3"),
        (GraphOptions, {"edges": 0.0}, "edges above 0"),
        (GraphOptions, {"edge_dropout": 1.0}, "edge_dropout and absent"),
        (GraphOptions, {"absent": -0.1}, "edge_dropout and absent"),
        (GraphOptions, {"contrast": 0.0}, "contrast and pace above 0"),
        (GraphOptions, {"pace": float("nan")}, "contrast and pace above 0"),
        (NeighbourOptions, {"transfer": "shouting"}, "transfer must be one of gating"),
        (NeighbourOptions, {"neighbours": -1}, "neighbours and detection must be 0 or more"),
        (NeighbourOptions, {"epsilon": 1.5}, "epsilon from -1 to 1"),
        (MasstoolOptions, {"share": 0.0}, "share above 0"),
        (MasstoolOptions, {"start": "w"}, "set train_encoder=true as well"),
        (MasstoolOptions, {"train_encoder": True, "encoder": "e"}, "name its weights by start"),
        (MasstoolOptions, {"self_queries": 0.5}, "leave self_queries at 0"),
        (ColtOptions, {"loss": "mnrl"}, "loss must be sigmoid or softmax"),
        (MasstoolOptions, {"rate": 0.0}, "rate and scale"),
        (ColtOptions, {"graph": -1.0}, "graph, new_bonus and added_bonus"),
        (ColtOptions, {"train_encoder": True, "encoder": "e"}, "name its weights by start"),
        (ColtOptions, {"layers": 7}, "layers must be 0 to 3"),
    ],
)
def test_options_that_cannot_train_are_refused(kind: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadModel, match=message):
        kind(**changed)
    assert replace(kind()) == kind()
