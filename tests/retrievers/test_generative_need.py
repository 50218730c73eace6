"""Whether a request needs a tool is asked of the request alone: not of what the catalogue holds by now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrievers.generators import empty, fitted, home, made, opened
from tests.retrievers.scenes import scenes
from tests.toys import HashedWords, catalogue
from toolscout.core.answer import Allowed
from toolscout.core.tool import Tool
from toolscout.data.no_tool_prompts import read_negatives
from toolscout.models.decoding.constrained import odds_against
from toolscout.models.decoding.trie import Trie
from toolscout.retrievers.generative.base import NO_TOOL
from toolscout.retrievers.generative.fit import _calibrated
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.toolgen import Toolgen
from toolscout.scout import Scout

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

REQUESTS = [text for _, text in scenes().split("test").requests[:6]] + ["tell me a joke", "hello"]
KINDS = ["toolgen", "toolweaver-sets"]


def forecast(retriever: Any) -> list[float]:
    found = retriever.need(REQUESTS)
    assert found is not None
    return list(found)


def among_those_here(retriever: Any) -> Any:
    """What "no tool" is weighed against in the trie: with the tools of training, that is the same."""
    reading = retriever._extended(retriever.reading(REQUESTS), retriever._request_vectors(REQUESTS))
    here = retriever._trie.children(Trie.ROOT)
    return odds_against(reading, retriever._scoring(), here, [retriever.token(NO_TOOL)])


@pytest.mark.parametrize("name", KINDS)
def test_need_is_the_same_whatever_the_catalogue_holds(name: str) -> None:
    retriever = opened(name)
    assert retriever.against_none(REQUESTS) == pytest.approx(among_those_here(retriever), abs=1e-4)
    need = forecast(retriever)
    retriever.add([Tool("zoo", f"pat_{number}", "pats the lion") for number in range(30)])
    assert forecast(retriever) == need
    retriever.remove([one for one in retriever.ids() if one != catalogue(60)[0].id])
    assert len(retriever) == 1
    assert among_those_here(retriever) != pytest.approx(retriever.against_none(REQUESTS), abs=1e-2)
    assert forecast(retriever) == need
    retriever.remove(retriever.ids())
    assert forecast(retriever) == need
    retriever.add(catalogue(60)[::-1])
    assert forecast(retriever) == need


@pytest.mark.parametrize("name", KINDS)
def test_need_outlives_a_saved_catalogue_of_other_tools(name: str, tmp_path: Path) -> None:
    need = forecast(opened(name))
    other = empty(name)
    other.add([Tool("zoo", "pat", "pats the lion")])
    other.save(tmp_path / "other")
    again = type(other).load(tmp_path / "other", HashedWords())
    assert again.ids() == ["zoo/pat"]
    assert forecast(again) == pytest.approx(need, abs=1e-3)
    again.save(tmp_path / "third")
    assert forecast(type(other).load(tmp_path / "third", HashedWords())) == pytest.approx(need, abs=1e-3)
    again.remove(again.ids())
    again.add(catalogue(60))
    again.save(tmp_path / "third")
    assert not (tmp_path / "third" / "weighed.npz").exists()
    assert forecast(type(other).load(tmp_path / "third", HashedWords())) == pytest.approx(need, abs=1e-3)


def test_what_was_trained_and_is_not_known_is_not_guessed(tmp_path: Path) -> None:
    other = empty("toolgen")
    other.add([Tool("zoo", "pat", "pats the lion")])
    other.save(tmp_path)
    (tmp_path / "weighed.npz").unlink()  # as it was written before
    assert Toolgen.load(tmp_path, HashedWords()).need(REQUESTS) is None
    assert made("toolgen").need(REQUESTS) is None
    unknown: Any = made("toolgen")
    unknown.against_none = lambda requests: None
    negatives = read_negatives(str(home() / "prompts"))
    assert _calibrated(unknown, [TrainingSet(scenes(), dev="dev")], negatives) is None


@pytest.mark.parametrize("ids", ["semantic", "numeric", "hierarchical"])
def test_ids_of_several_tokens_are_weighed_as_they_were_trained(ids: str) -> None:
    retriever = opened(f"toolgen-{ids}")
    retriever._training_tokens = retriever._find_training_tokens()
    before = retriever.against_none(REQUESTS)
    assert before == pytest.approx(among_those_here(retriever), abs=1e-4)
    retriever.remove(retriever.ids())
    retriever.add([Tool("zoo", "pat", "pats the lion")])
    assert np.array_equal(retriever.against_none(REQUESTS), before)


@pytest.mark.parametrize("name", KINDS)
def test_an_emptied_catalogue_says_that_it_is_empty(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder", HashedWords)
    with Scout.open(tmp_path / "s.db", fitted(name)) as scout:
        scout.add(catalogue(60))
        needs = [scout.search(request, 3, Allowed.of(ids=[catalogue(1)[0].id])).need for request in REQUESTS]
        assert needs == pytest.approx(forecast(opened(name)), abs=1e-3)
        scout.remove([tool.id for tool in catalogue(60)])
        for request, need in zip(REQUESTS, needs, strict=True):
            answer = scout.search(request, 3)
            assert answer.need == pytest.approx(need, abs=1e-3)
            if need is not None and need >= scout.need_options.threshold:
                assert answer.verdict == "nothing_fits"
        assert "the catalogue is empty" in answer.notes[0]
