"""masstool_published: what is served is what was trained, on the tools it was trained on and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.retrievers.scenes import Killed, recall, scenes
from tests.toys import HashedWords, catalogue
from toolscout.core.answer import Allowed, ExactName
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset, BadModel, NeedsTraining
from toolscout.papers.masstool import published_training
from toolscout.papers.masstool.published import MasstoolPublished, MasstoolPublishedOptions
from toolscout.retrievers.model_folder import read_model, trained_on
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.training.tower import nearest

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
CHAT = ["tell me a joke", "write a poem", "who are you", "a song of joy", "how do you feel", "cheer me up"] * 4


def options(**changed: Any) -> MasstoolPublishedOptions:
    chosen = {"epochs": 4, "rate": 0.01, "batch": 20, "epsilon": 0.4, "neighbours": 5, "device": "cpu"}
    return MasstoolPublishedOptions(**{**chosen, **changed})


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts that need no tool, in a folder that nobody else has."""
    folder = tmp_path_factory.mktemp("somewhere") / "chat"
    folder.mkdir()
    rows = [{"_id": f"p{n}", "text": f"{text} {n}", "split": "train", "source": "s"} for n, text in enumerate(CHAT)]
    rows.append({"_id": "held", "text": "held out", "split": "test", "source": "s"})
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, prompts: Path) -> Path:
    """A model with detection."""
    made = MasstoolPublished(options(no_tool=str(prompts), epochs=8), HashedWords())
    home = tmp_path_factory.mktemp("models") / "model"
    made.fit([TrainingSet(scenes())], home)
    return home


def opened(folder: Path) -> MasstoolPublished:
    return MasstoolPublished.load(folder, HashedWords())


def test_a_trained_model_finds_what_words_do_not_say(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    data, loaded = scenes(), load_model(folder)
    assert isinstance(loaded, MasstoolPublished)
    assert len(loaded) == len(data.tools)
    assert recall(loaded, data, "test") > 0.9
    fit = read_model(folder)["fit"]
    assert fit["dev"]["recall@5"] == pytest.approx(recall(loaded, data, "dev"), abs=0.021)  # half precision, one tool
    assert len(fit["history"]) == 8
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.json", "pool", "rows.json", "tools.json", "tower.npz", "trained_on.json", "vectors",
    ]  # fmt: skip


def test_the_saved_model_ranks_as_the_fitted_one(tmp_path: Path) -> None:
    data = scenes()
    made = MasstoolPublished(options(epochs=1), HashedWords())
    made.fit([TrainingSet(data)], tmp_path / "model")
    made.remove(["space0/create_issue_0"])
    made.save(tmp_path / "again")
    requests = [text for _, text in data.split("test").requests]
    assert opened(tmp_path / "again").search(requests, 60) == made.search(requests, 60)
    back = opened(tmp_path / "again")
    back.add(data.tools)
    assert len(back) == 60
    assert back.search(requests, 60) == opened(tmp_path / "model").search(requests, 60)


def test_what_is_served_is_what_the_network_computes(folder: Path) -> None:
    data, loaded, encoder = scenes(), opened(folder), HashedWords()
    train = [text for _, text in data.split("train").requests]
    asked = [text for _, text in data.split("test").requests] + ["nothing like any of them"]
    pool = encoder.encode(train).astype(np.float16).astype(np.float32)
    tools = encoder.encode([tool.document() for tool in data.tools]).astype(np.float16).astype(np.float32)
    places = {tool.id: row for row, tool in enumerate(data.tools)}
    gold = [np.array(sorted(places[i] for i in ids)) for ids in data.split("train").gold]
    numbered = np.array([int(request_id.split("-")[1]) for request_id, _ in data.split("train").requests])
    none = np.zeros((0, encoder.dimension), dtype=np.float32)
    material = published_training.PublishedTrainingData(pool, gold, numbered, tools, pool[:1], none, [])
    task = published_training.PublishedTask(material, loaded.options, torch.device("cpu"))
    served = dict(np.load(folder / "tower.npz"))
    with torch.no_grad():
        for name, parameter in task.network.named_parameters():
            if name not in ("requests", "aware", "tools", "negatives"):
                parameter.copy_(torch.from_numpy(served[name]))
        task.network.eval()
        views = [torch.from_numpy(served[f"pool.{view}"].astype(np.float32)) for view in range(2)]
        known = torch.from_numpy(served["tools"].astype(np.float32))
        vectors = encoder.encode(asked)
        both = torch.from_numpy(vectors), torch.from_numpy(pool)
        rows, cosines = nearest(*both, loaded.options.neighbours)
        near = rows, cosines >= loaded.options.epsilon
        seen = published_training.PropagatedViews((views[0], views[1]), (known, known), known)
        scores = (task.joint(vectors, seen, near) @ known.T).numpy() / 6
        state = task.network.state(torch.from_numpy(vectors))
        assert state is not None
        chances = task.network.shares(state)[:, 1].numpy()
    assert not near[1][-1].any()  # one request has no neighbour that is near enough
    for hits, row in zip(loaded.search(asked, 60), scores, strict=True):
        assert [row[places[hit.tool_id]] for hit in hits] == pytest.approx([hit.score for hit in hits], abs=2e-4)
    assert loaded.need(asked) == pytest.approx(chances.tolist(), abs=1e-5)


def test_detection_tells_requests_from_chat(folder: Path, tmp_path: Path) -> None:
    loaded = opened(folder)
    asked = [text for _, text in scenes().split("test").requests]
    needed, chat = loaded.need(asked), loaded.need(["tell me a song", "write how you feel"])
    assert needed is not None
    assert chat is not None
    assert min(needed) > max(chat)
    assert loaded.need([]) == []
    without = MasstoolPublished(options(epochs=1), HashedWords())
    assert without.need(asked) is None
    without.fit([TrainingSet(scenes())], tmp_path)
    assert without.need(asked) is None


def test_the_request_vector_is_the_encoders(folder: Path) -> None:
    (ranking,) = opened(folder).rank(["sceneszorp3 mail"], 2)
    assert ranking.vector is not None
    assert np.array_equal(ranking.vector, HashedWords().encode_request("sceneszorp3 mail"))
    assert ranking.pairs[0][1] <= 1


def test_a_restricted_caller_gets_the_full_ranking_without_the_rest(folder: Path) -> None:
    loaded = opened(folder)
    allowed = Allowed.of({"space1", "space4"}, {"space0/create_issue_0", "no/such"})
    for request in ("sceneszorp3 mail", "search issue", "create_issue_0 or get_weather_8", ""):
        full = [hit for hit in loaded.search([request], 60)[0] if allowed.permits(hit.tool_id)]
        assert loaded.search([request], 60, Scope(allowed))[0] == full
        assert loaded.search([request], 3, Scope(allowed))[0] == full[:3]


def test_an_exact_name_comes_first(folder: Path) -> None:
    named = catalogue(60)[8]
    hit = opened(folder).search([f"sceneszorp3 please call {named.name}"], 3)[0][0]
    assert hit.tool_id == named.id
    assert any(isinstance(reason, ExactName) for reason in hit.reasons)


def test_another_tool_needs_training(folder: Path) -> None:
    loaded = opened(folder)
    changed = replace(catalogue(60)[3], description="something else")
    with pytest.raises(NeedsTraining, match="--retriever masstool_published --out FOLDER") as caught:
        loaded.add([Tool("zoo", "feed_lion"), changed, catalogue(60)[0]])
    assert caught.value.ids == ("zoo/feed_lion", changed.id)
    assert len(loaded) == 60
    with pytest.raises(NeedsTraining, match="and 55 more before it is trained on them"):
        MasstoolPublished(encoder=HashedWords()).add(catalogue(60))


def test_all_that_was_seen_is_kept_and_no_path_is(folder: Path, prompts: Path) -> None:
    seen = trained_on(folder)
    assert [(one.dataset, one.split, one.role, len(one.requests)) for one in seen.splits] == [
        ("scenes", "train", "train", 60),
        ("scenes", "dev", "dev", 24),
        ("chat", "train", "train", 24),
    ]
    assert opened(folder).options.no_tool == "chat"
    assert str(prompts.parent) not in (folder / "model.json").read_text()


def test_an_interrupted_fit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.retrievers.encoded_requests._CHUNK", 16)
    data = scenes()
    with pytest.raises(KeyboardInterrupt):
        MasstoolPublished(options(), Killed(70)).fit([TrainingSet(data)], tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr(MasstoolPublished, "save", Killed(0).encode_request)  # trained, not yet saved
        with pytest.raises(KeyboardInterrupt):
            MasstoolPublished(options(), HashedWords()).fit([TrainingSet(data)], tmp_path / "killed")
    again, encoder = MasstoolPublished(options(), killed := Killed(0)), HashedWords()
    again.fit([TrainingSet(data)], tmp_path / "killed")  # all is encoded
    straight = MasstoolPublished(options(), encoder)
    straight.fit([TrainingSet(data)], tmp_path / "straight")
    killed.left = 1000
    requests = [text for _, text in data.split("test").requests]
    assert again.search(requests, 60) == straight.search(requests, 60)


def test_a_dataset_without_dev_is_trained_to_the_end(tmp_path: Path) -> None:
    made = MasstoolPublished(options(epochs=2), HashedWords())
    assert made.fit([TrainingSet(scenes(), dev="")], tmp_path).dev == {}
    assert len(made) == 60


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    data = scenes()
    made = MasstoolPublished(options(), HashedWords())
    with pytest.raises(BadModel, match="one dataset"):
        made.fit([TrainingSet(data), TrainingSet(scenes("other"))], tmp_path / "m")
    one = Dataset("one", data.tools, {"r": "request"}, {"train": {"r": (data.tools[0].id,)}})
    with pytest.raises(BadModel, match="at least two"):
        made.fit([TrainingSet(one, dev="")], tmp_path / "m")
    with pytest.raises(BadDataset, match="name a folder of prompts"):
        MasstoolPublished(options(no_tool=str(tmp_path)), HashedWords()).fit([TrainingSet(data)], tmp_path / "m")
    for wrong in ({"epochs": 0}, {"rate": 0.0}, {"edge_dropout": 1.0}, {"beta": -1.0}, {"candidates": 1}):
        with pytest.raises(BadModel, match="must be"):
            options(**wrong)


def test_a_damaged_model_says_so(folder: Path, tmp_path: Path) -> None:
    opened(folder).save(tmp_path / "model")
    path = tmp_path / "model" / "tower.npz"
    for content in (b"PK half", path.read_bytes()[:5000], b""):
        path.write_bytes(content)
        with pytest.raises(BadModel, match="train the model again"):
            opened(tmp_path / "model")


def test_how_near_others_come_is_measured_as_hits_are(folder: Path) -> None:
    loaded, encoder = opened(folder), HashedWords()
    loaded.remove(loaded.ids())
    assert not len(loaded.best_similarities(encoder.encode(["mail it"])))
    loaded.add(scenes().tools)
    requests = [text for _, text in scenes().split("dev").requests][:5]
    found = loaded.best_similarities(encoder.encode(requests))
    best = [loaded.explain(ranking, loaded.ids()) for ranking in loaded.rank(requests, 1)]
    cosines = [max(why[-1].cosine for why in reasons if hasattr(why[-1], "cosine")) for reasons in best]
    assert found.tolist() == pytest.approx(cosines, abs=1e-3)
