"""The published MassTool without one of its parts: where gradients go, what training changes, and what is served."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.papers.test_published_training import CPU, WIDTH, material, options, unit
from toolscout.core.arrays import Bools, Floats, Ints
from toolscout.errors import BadModel
from toolscout.papers.masstool import published_training
from toolscout.papers.masstool.ablations import FULL
from toolscout.papers.masstool.published import DIFFERENCES, KEPT_FAULTS, PublishedTower
from toolscout.papers.masstool.published_ablations import VARIANTS
from toolscout.papers.masstool.published_training import PublishedTask
from toolscout.training.encoder_options import PUBLISHED_TRANSFERS, PublishedOptions

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
TOWER = {"aware", "hidden.weight", "hidden.bias"}
INFO = {"info.weight", "info.bias"}
TRANSFER_PARTS = {
    "gating": {f"gates.{view}.{kind}" for view in range(2) for kind in ("weight", "bias")},
    "concatenation": {f"joins.{view}.{kind}" for view in range(2) for kind in ("weight", "bias")},
    "attention": {"mixes.0", "mixes.1"},
    "addition": set[str](),
}
# What the paper's formulas say each loss reaches.
REACHED = {
    "retrieval": {"requests", "tools", "attention.0", "attention.1", *TOWER, *INFO},
    "contrastive": {"requests", "tools"},
    "detection": {*TOWER, "negatives", "classes.weight", "classes.bias"},
}
# Options whose values in the study are made for real data: this small problem has its own threshold and few requests.
REAL_DATA_ONLY = {"epsilon", "train_share"}
EPSILON = 0.85


def task_of(**changed: Any) -> PublishedTask:
    torch.manual_seed(0)
    task = PublishedTask(material(), options(**{"epsilon": EPSILON, **changed}), CPU)
    task.begin(0)
    return task


def gradients(task: PublishedTask) -> dict[str, dict[str, torch.Tensor]]:
    """The gradients of each loss, by the name of the parameter; without those that are 0 everywhere."""
    found = {}
    for name, loss in task.losses(0, 0).items():
        parameters = task.parameters()
        computed = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
        pairs = zip(parameters, computed, strict=True)
        found[name] = {one: grad for one, grad in pairs if grad is not None and bool(grad.any())}
    return found


def rows_with(gradient: torch.Tensor) -> set[int]:
    return set(torch.nonzero(gradient.any(1)).ravel().tolist())


@pytest.mark.parametrize("transfer", TRANSFER_PARTS)
def test_each_loss_reaches_the_parameters_that_the_paper_says(transfer: str) -> None:
    task = task_of(transfer=transfer)
    found = gradients(task)
    assert set(found["retrieval"]) == REACHED["retrieval"] | TRANSFER_PARTS[transfer]
    assert set(found["contrastive"]) == REACHED["contrastive"]
    assert set(found["detection"]) == REACHED["detection"]
    assert {one for names in found.values() for one in names} == set(task.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_variant_has_a_parameter_that_nothing_trains(variant: str) -> None:
    changes = {name: value for name, value in VARIANTS[variant].items() if name not in REAL_DATA_ONLY}
    task = task_of(**changes)
    assert {one for names in gradients(task).values() for one in names} == set(task.parameters())


def test_gradients_pass_the_graph_to_requests_outside_the_batch() -> None:
    alone, linked = task_of(neighbours=0, layers=0), task_of(neighbours=0, layers=1)
    batch = set(alone._order[:16].tolist())
    assert rows_with(gradients(alone)["retrieval"]["requests"]) == batch
    assert rows_with(gradients(linked)["retrieval"]["requests"]) > batch
    for task in (alone, linked):
        assert rows_with(gradients(task)["contrastive"]["requests"]) >= batch


def test_gradients_pass_attention_to_the_neighbours_and_no_others() -> None:
    task = task_of(layers=0)
    batch = task._order[:16]
    assert task._near is not None
    near, mask = (part[batch] for part in task._near)
    assert 0 < int(mask.sum()) < mask.numel()
    found = rows_with(gradients(task)["retrieval"]["requests"])
    assert found == set(batch.tolist()) | set(near[mask].tolist())
    assert found > set(batch.tolist())


def trained(folder: Path, **changed: Any) -> tuple[Mapping[str, Floats], PublishedOptions]:
    chosen = options(**{"epochs": 3, "epsilon": EPSILON, **changed})
    return published_training.learn(material(), chosen, folder, "toy").weights, chosen


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_detection": 0.0},
        {"weight_detection": 1.0},
        {"neighbours": 0},
        {"transfer": "none"},
        {"transfer": "addition"},
        {"transfer": "concatenation"},
        {"transfer": "attention"},
        {"epsilon": 0.0},
        {"epsilon": 0.9},
        {"beta": 0.0},
        {"loss": "pairwise"},
        {"layers": 0},
        {"layers": 2},
        {"layers": 3},
    ],
    ids=str,
)
def test_every_part_and_every_loss_changes_the_trained_vectors(tmp_path: Path, changes: dict[str, Any]) -> None:
    full, _ = trained(tmp_path / "full")
    again, _ = trained(tmp_path / "again")
    changed, _ = trained(tmp_path / "changed", **changes)
    assert all(np.array_equal(full[name], again[name]) for name in full)  # so that any difference has a cause
    shared = [name for name in changed if name in full and not name.startswith("classes")]
    assert min(np.abs(full[name] - changed[name]).max() for name in shared) > 1e-6


def test_variants_of_one_seed_start_alike() -> None:
    full = dict(task_of().parameters())
    for changes in VARIANTS.values():
        small = {name: value for name, value in changes.items() if name not in REAL_DATA_ONLY}
        for name, parameter in task_of(**small).parameters().items():
            if not name.startswith(("joins.", "mixes.")):
                assert torch.equal(parameter, full[name])


def expected_scores(
    weights: Mapping[str, Floats], chosen: PublishedOptions, vector: Floats, near: Ints, mask: Bools, tools: Floats
) -> Floats:
    """The mean of the cosines with every tool, by torch's own functions and the formulas of the paper."""
    given = {name: torch.from_numpy(array) for name, array in weights.items()}
    own, against = torch.from_numpy(vector), torch.from_numpy(tools)

    def linear(name: str, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs, given[f"{name}.weight"], given[f"{name}.bias"])

    def attention(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(queries[None], keys[None], keys[None], scale=1.0)[0]

    vectors = []
    for view in range(2):
        base = own
        vectors.append(base)
        if chosen.neighbours:
            pool = given[f"pool.{view}"][torch.from_numpy(near[mask])]
            base = attention((own @ given[f"attention.{view}"])[None], pool)[0] if len(pool) else torch.zeros(WIDTH)
            vectors.append(base)
        if chosen.transfer == "none":
            continue
        info = linear("info", linear("hidden", own).relu()).relu()
        pair = torch.stack([base, info])
        if chosen.transfer == "gating":
            vectors.append(linear(f"gates.{view}", info).sigmoid() * base)
        elif chosen.transfer == "addition":
            vectors.append(pair.sum(0))
        elif chosen.transfer == "concatenation":
            vectors.append(linear(f"joins.{view}", pair.ravel()))
        else:
            vectors.append(attention(pair @ given[f"mixes.{view}"], pair).sum(0))
    cosines = [functional.cosine_similarity(one[None], against) for one in vectors]
    found: Floats = torch.stack(cosines).mean(0).numpy()
    return found


@pytest.mark.parametrize("layers", [0, 1])
@pytest.mark.parametrize("neighbours", [0, 5])
@pytest.mark.parametrize("transfer", PUBLISHED_TRANSFERS)
def test_numpy_serves_what_torch_computes(tmp_path: Path, transfer: str, neighbours: int, layers: int) -> None:
    weights, chosen = trained(tmp_path, transfer=transfer, neighbours=neighbours, layers=layers)
    tower = PublishedTower(weights, chosen.transfer, chosen.neighbours > 0)
    random = np.random.default_rng(7)
    tools = np.ascontiguousarray(weights["tools"])
    count = 2 * (1 + (neighbours > 0) + (transfer != "none"))
    task = PublishedTask(material(), chosen, CPU)
    with torch.no_grad():
        for name, parameter in task.parameters().items():
            if name in weights and name != "tools":
                parameter.copy_(torch.from_numpy(weights[name]))
    task.network.eval()
    for kept in (5, 2, 0):
        vector = unit(random.standard_normal(WIDTH))
        near = random.choice(48, 5, replace=False)
        mask = np.arange(5) < kept
        found = tower.joint(vector, near, mask)
        assert found.dtype == np.float32
        assert found @ tools.T == pytest.approx(expected_scores(weights, chosen, vector, near, mask, tools), abs=2e-6)
        with torch.no_grad():
            pools = [torch.from_numpy(weights[f"pool.{view}"]) for view in range(2)] if neighbours else [None, None]
            views: Any = published_training.PropagatedViews((pools[0], pools[1]), (None, None), None)  # type: ignore[arg-type]
            given = (torch.from_numpy(near)[None], torch.from_numpy(mask)[None]) if neighbours else None
            served = task.joint(vector[None], views, given)[0].numpy() / count
        assert found == pytest.approx(served, abs=2e-6)


def test_what_a_variant_leaves_out_is_not_in_its_weights(tmp_path: Path) -> None:
    bare, _ = trained(tmp_path / "bare", neighbours=0, transfer="none", weight_detection=0.0)
    assert set(bare) == {"tools"}
    silent, _ = trained(tmp_path / "silent", weight_detection=0.0)
    assert not {name for name in silent if name.startswith("classes")}
    assert "gates.0.weight" in silent


@pytest.mark.parametrize(
    "wrong",
    [
        {"transfer": "sum"},
        {"loss": "hinge"},
        {"neighbours": -1},
        {"layers": -1},
        {"epsilon": 1.5},
        {"train_share": 0.0},
        {"train_share": 1.1},
        {"weight_detection": -0.1},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadModel) as refused:
        PublishedOptions(**wrong)
    reason = str(refused.value).partition(", got")[0]
    assert next(iter(wrong)) in reason
    assert "must be" in reason


def test_the_variants_change_one_option_each_and_the_differences_are_listed() -> None:
    assert [name for name, changes in VARIANTS.items() if not changes] == [FULL]
    assert all(len(changes) == 1 for name, changes in VARIANTS.items() if name != FULL)
    assert all(PublishedOptions(**changes) for changes in VARIANTS.values())
    assert all(line.endswith(".") for line in (*DIFFERENCES, *KEPT_FAULTS))
