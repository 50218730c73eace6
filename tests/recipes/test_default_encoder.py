"""The recipe of the models in the package, in miniature: every stage on made-up tokens, on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

WORDS, TOPICS = 2100, 24
SETS = ("tldr", "sealtools")


def flat(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([np.asarray(text, np.uint16) for text in texts]), np.cumsum([len(text) for text in texts])


def asked_of(topic: int, random: np.random.Generator) -> list[int]:
    """A request: words of one topic, of which no document has any."""
    return (1000 + topic * 8 + random.integers(0, 4, 5)).tolist()


def told_of(topic: int, random: np.random.Generator) -> list[int]:
    """A document: other words of the topic."""
    return (1000 + topic * 8 + random.integers(4, 8, 12)).tolist()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published weights of a tiny BERT, and tokens of requests and documents."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from recipes.default_encoder.network import write_weights

    folder = tmp_path_factory.mktemp("work")
    torch.set_num_threads(1)  # matrices so small are not worth waiting for a second thread
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=6, num_attention_heads=2, intermediate_size=64
    )
    write_weights(folder / "minilm.safetensors", transformers.BertModel(config, add_pooling_layer=False).state_dict())
    random = np.random.default_rng(0)
    for file, names, split in (
        ("train", SETS, "train"),
        ("dev", ("bundled",), "dev"),
        ("written", ("written-toolbench",), "train"),
    ):
        arrays = {}
        for name in names:
            asked = [asked_of(number % TOPICS, random) for number in range(96)]
            gold = [(number, number % TOPICS) for number in range(96)]
            arrays[f"{name}/documents"], arrays[f"{name}/documents_ends"] = flat(
                [told_of(number, random) for number in range(TOPICS)]
            )
            arrays[f"{name}/{split}/requests"], arrays[f"{name}/{split}/requests_ends"] = flat(asked)
            arrays[f"{name}/{split}/gold"] = np.asarray(gold, np.int32)
        np.savez(folder / f"texts-{file}.npz", **arrays)
    goals = [asked_of(number % TOPICS, random) for number in range(120)]
    translated, ends = flat([[word - 900 for word in goal] for goal in goals])
    english, english_ends = flat(goals)
    languages = ("es", "fr", "de", "it", "pt_BR", "ko", "zh", "ru", "ja")
    np.savez(
        folder / "translations.npz",
        translated=translated,
        translated_ends=ends,
        english=english,
        english_ends=english_ends,
        language=np.array([languages[number % 9] for number in range(120)]),
        document=np.array([number % TOPICS for number in range(120)], np.int32),
        held=np.array([number >= 90 for number in range(120)]),
    )
    return folder


def run(work: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    from recipes.default_encoder import __main__ as recipe

    monkeypatch.setattr(sys, "argv", ["recipe", *arguments, "--work", str(work), "--share", "0.001"])
    recipe.main()


def test_every_stage_trains_what_the_next_one_reads(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = ("encoder", "cross", "distil", "average", "languages", "fast", "written")
    run(work, monkeypatch, *stages, "--seeds", "0", "1")
    said = capsys.readouterr().out
    titles = ("published", "encoder, seed 0", "cross6, weight 1", "cross3, weight 1", "fast3, requests alone")
    assert [title for title in titles if f"  {title}" not in said] == []
    rows = [json.loads(line) for line in (work / "measures.jsonl").read_text().splitlines()]
    assert {row["model"] for row in rows} >= {*titles, "encoder, written-toolbench", "encoder, nothing written"}
    assert {row["set"] for row in rows} == {
        "bundled/dev",
        "en",
        "es",
        "fr",
        "de",
        "it",
        "pt_BR",
        "ko",
        "zh",
        "ru",
        "ja",
    }
    made = {path.stem: path.stat().st_mtime_ns for path in work.glob("*.safetensors")}
    wanted = ("minilm", "languages", "cross6", "cross3", "averaged", "fast3", "fast2", "unwritten")
    kinds = ("averaged-all", "averaged-tools")
    seeds = {f"{name}-s{seed}" for name in ("encoder", "distilled-all", "distilled-tools") for seed in (0, 1)}
    assert set(made) == {*wanted, *kinds, *seeds}
    run(work, monkeypatch, *stages, "--seeds", "0", "1")  # all is there: nothing is trained again
    assert made == {path.stem: path.stat().st_mtime_ns for path in work.glob("*.safetensors")}


def test_an_encoder_learns_which_words_go_together(work: Path) -> None:
    from recipes.default_encoder import bi_encoder, measures, network

    data = network.TokenisedSet(*_tokens(work / "texts-dev.npz", "bundled", "dev"))
    model = network.bert(network.read_weights(work / "minilm.safetensors"), (0, 1))
    before = measures.measure(model, [data])["bundled"][1]
    settings = bi_encoder.EncoderTraining(60, 2e-3, batch=32, documents=TOPICS)
    bi_encoder.train_encoder(model, [data], settings, {data.name: network.near_misses(model, data, 4)})
    assert measures.measure(model, [data])["bundled"][1] > before + 0.3


def test_an_encoder_of_fewer_layers_gives_the_vectors_of_the_whole(work: Path) -> None:
    from recipes.default_encoder import imitation, network

    weights = network.read_weights(work / "minilm.safetensors")
    teacher, student = network.bert(weights).eval(), network.bert(weights, (0, 5))
    for drawn in student.encoder.parameters():
        drawn.data.normal_(std=0.2)
    texts = network.TokenisedSet(*_tokens(work / "texts-train.npz", "tldr", "train")).requests
    wanted = network.embed_all(teacher, texts)
    before = float((network.embed_all(student, texts) * wanted).sum(1).mean())
    imitation.imitate(student, [imitation.Wanted(texts, wanted)], imitation.ImitationTraining(40, 3e-3, batch=64))
    assert float((network.embed_all(student, texts) * wanted).sum(1).mean()) > before + 0.5 * (1 - before)


def test_a_teacher_tells_the_vectors_of_texts_that_nobody_wrote(work: Path) -> None:
    import torch

    from recipes.default_encoder import imitation, network

    weights = network.read_weights(work / "minilm.safetensors")
    teacher, student = network.bert(weights).eval(), network.bert(weights, (0,))
    texts = network.TokenisedSet(*_tokens(work / "texts-train.npz", "tldr", "train")).requests
    wanted = network.embed_all(teacher, texts)
    torch.manual_seed(1)
    unread = network.altered(texts)
    told = network.embed_all(teacher, unread)
    before = float((network.embed_all(student, unread) * told).sum(1).mean())
    settings = imitation.ImitationTraining(40, 3e-3, batch=64, dropout=0.0)
    imitation.imitate(student, [imitation.Wanted(texts, wanted)], settings, teacher)
    assert float((network.embed_all(student, unread) * told).sum(1).mean()) > before + 0.5 * (1 - before)


def test_an_altered_text_is_a_part_of_one_or_parts_of_two_in_order() -> None:
    import torch

    from recipes.default_encoder import network

    texts = network.Texts.of(*flat([list(range(first, first + 20)) for first in (1000, 2000, 3000)]), 30)
    torch.manual_seed(0)
    joined = 0
    for _ in range(20):
        changed = network.altered(texts)
        for first, row, length in zip((1000, 2000, 3000), changed.rows.tolist(), changed.lengths.tolist(), strict=True):
            own = [token for token in row[:length] if first <= token < first + 20]
            other = row[len(own) : length]
            assert own
            assert own == sorted(own)
            assert other == sorted(other)
            assert not any(row[length:])
            joined += bool(other)
    assert 0 < joined < 40


def _tokens(path: Path, name: str, split: str) -> tuple[str, object, object, np.ndarray]:
    from recipes.default_encoder.network import Texts

    arrays = np.load(path)
    documents = Texts.of(arrays[f"{name}/documents"], arrays[f"{name}/documents_ends"], 94)
    requests = Texts.of(arrays[f"{name}/{split}/requests"], arrays[f"{name}/{split}/requests_ends"], 62)
    return name, documents, requests, arrays[f"{name}/{split}/gold"]


def test_texts_of_any_length_get_the_vectors_they_have_alone(work: Path) -> None:
    import torch

    from recipes.default_encoder import network

    model = network.bert(network.read_weights(work / "minilm.safetensors")).eval()
    texts = network.Texts.of(*flat([list(range(1000, 1000 + count)) for count in (3, 40, 1, 17)]), 62)
    (together,) = network.embed(model, (texts, torch.arange(4)))
    for row in range(4):
        (alone,) = network.embed(model, (texts, torch.tensor([row])))
        assert torch.allclose(together[row], alone[0], atol=1e-5)


def test_a_combined_request_is_one_and_another_and_needs_the_tools_of_both(work: Path) -> None:
    from recipes.default_encoder import network

    data = network.TokenisedSet(*_tokens(work / "texts-train.npz", "tldr", "train"))
    both = network.combined(data, 50, 62, seed=0)
    known = {tuple(data.requests.rows[row, :5].tolist()): data.gold[row, 0].item() for row in range(96)}
    for row in range(50):
        tokens = both.requests.rows[row].tolist()
        assert tokens[5:7] == [1012, 2036]
        assert both.requests.lengths[row] == 12
        assert not any(tokens[12:])
        wanted = {known[tuple(tokens[:5])], known[tuple(tokens[7:12])]}
        assert {number for number in both.gold[row].tolist() if number >= 0} == wanted


def test_pairs_are_cut_as_the_cross_encoder_cuts_them(work: Path) -> None:
    import torch

    from recipes.default_encoder import network
    from toolscout.models.rerankers.cross_encoder import _kept

    lengths = [(3, 4), (40, 4), (3, 90), (40, 90), (12, 13)]
    requests = network.Texts.of(*flat([list(range(1000, 1000 + asked)) for asked, _ in lengths]), 62)
    documents = network.Texts.of(*flat([list(range(1500, 1500 + told)) for _, told in lengths]), 94)
    rows = torch.arange(len(lengths))
    ids, mask, types = network.paired(requests, rows, documents, rows, 32)
    for row, (asked, told) in enumerate(lengths):
        whole = [101, *range(1000, 1000 + asked), 102, *range(1500, 1500 + told), 102]
        sequences = [None, *[0] * asked, None, *[1] * told, None]
        kept = _kept(sequences, 32)
        count = int(mask[row].sum())
        assert ids[row, :count].tolist() == [whole[place] for place in kept]
        assert types[row, :count].tolist() == [int(place > asked + 1) for place in kept]


def test_batches_in_parts_get_the_states_of_the_published_code(work: Path) -> None:
    import torch

    from recipes.default_encoder import network

    model = network.bert(network.read_weights(work / "minilm.safetensors")).eval()
    lengths = torch.tensor([3, 30, 5, 29, 4, 60, 33])
    mask = torch.arange(60) < lengths[:, None]
    ids = torch.randint(1000, WORDS, mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    types = (torch.arange(60) > 9).long() * mask
    firsts = network.pooled(model, ids, mask, types, lambda states, _: states[:, 0])
    means = network.pooled(model, ids, mask, types, lambda states, real: (states * real[:, :, None]).sum(1))
    for row, length in enumerate(lengths.tolist()):
        own = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}
        states = model(**{name: one[row : row + 1, :length] for name, one in own.items()}).last_hidden_state[0]
        assert torch.allclose(firsts[row], states[0], atol=1e-5)
        assert torch.allclose(means[row], states.sum(0), atol=1e-4)


def test_the_layers_look_at_no_value_so_that_a_gpu_can_record_them(work: Path) -> None:
    from recipes.default_encoder import network

    model = network.bert(network.read_weights(work / "minilm.safetensors")).to("meta").train()
    import torch

    mask = torch.ones((3, 1, 1, 32), dtype=torch.bool, device="meta")
    embedded = torch.zeros((3, 32, 64), device="meta", requires_grad=True)
    states = network._Layers(model)(embedded, mask)
    states.sum().backward()  # a look at a value raises on this device
    assert states.shape == (3, 32, 64)


def test_a_document_that_competes_twice_counts_once() -> None:
    torch = pytest.importorskip("torch")
    from recipes.default_encoder import bi_encoder

    judged, wanted = torch.randn(5, 3), torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]])
    once = bi_encoder._misjudged(judged, wanted, torch.arange(3))
    again = torch.tensor([0, 1, 2, 1, 1, 0])
    assert torch.allclose(bi_encoder._misjudged(judged[:, again], wanted[:, again], again), once)


def test_a_tokeniser_learns_the_letters_that_it_lacks(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    from recipes.default_encoder.texts import extend_vocabulary

    vocabulary = {"[PAD]": 0, "[unused0]": 1, "[unused1]": 2, "[UNK]": 3, "list": 4, "文": 5}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(tmp_path / "old.json"))
    assert extend_vocabulary(tmp_path / "old.json", ["列出文件"] * 3 + ["list 件"], tmp_path / "new.json") == 2
    new = Tokenizer.from_file(str(tmp_path / "new.json"))
    assert new.encode("list 文件").ids[:2] == [4, 5]
    assert new.encode("件").tokens == ["件"]
    assert len(json.loads((tmp_path / "new.json").read_text())["model"]["vocab"]) == 6
