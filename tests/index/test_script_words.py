"""Words of other scripts: pairs of syllables, folded words, and what is left alone."""

from __future__ import annotations

import unicodedata

import pytest

from toolscout.index.script_words import composed, has_other_scripts, latin_text, other_words, paired_runs
from toolscout.index.spelling import correctable
from toolscout.retrievers.bm25 import _analyzer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("天気予報を表示", "天気 気予 予報 報を を表 表示"),
        ("天", "天"),
        ("Excelファイル", "ファ ァイ イル"),
        ("ﾃﾝｷ", "テン ンキ"),
        ("한국어로 JSON을 변환", "한국 국어 어로 을 변환"),
        ("พรุ่งนี้อากาศ", "พรุ รุง งนี นีอา อากา กาศ"),
        ("เปิดไฟล์", "เปิด ดไฟ ไฟล"),
        ("ພາສາລາວ", "ພາສາ ສາລາ ລາວ"),
        ("ភាសាខ្មែរ", "ភាសា សាខ ខមែ មែរ"),
        ("မြန်မာ", "မြန နမာ"),
        ("हिन्दी मौसम", "हिन नदी मौस सम"),
        ("ЁЛКА ёлка йод в файле", "ЕЛКА елка йод файле"),
        ("а́втор", "автор"),
        ("ΚΑΙΡΟΣ καιρός", "ΚΑΙΡΟΣ καιροσ"),
        ("شُكْرًا كـــتاب أحمد", "شكرا كتاب احمد"),
        ("می‌خواهم کتاب", "مي خواهم كتاب"),
        ("שָׁלוֹם", "שלום"),
        ("get_weather", ""),
        ("Zürich, café, Việt Nam, straße", ""),
        ("5μs and ½ m², α", ""),
        ("😀 👨‍👩‍👧 1️⃣", ""),
    ],
)
def test_words(text: str, words: str) -> None:
    assert other_words(text) == words.split()
    assert has_other_scripts(text) == bool(words)
    assert other_words(" ".join(other_words(text))) == words.split()


def test_the_same_word_however_it_is_spelt() -> None:
    for text in ("καιρός", "й ёлка автор", "天気が", "한국어", "हिन्दी"):
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            if "й" not in text:  # a letter of its own, in NFC alone
                assert other_words(unicodedata.normalize(form, text)) == other_words(text), (text, form)


def test_latin_text_and_composed_letters() -> None:
    assert latin_text("create_issueを使ってissue 12를") == "create_issue issue 12 "
    assert latin_text("plain text") == "plain text"
    assert latin_text("погода в Oslo и 5μs").split() == ["Oslo", "5μs"]
    assert composed("e\u0301te\u0301") == "été"
    assert composed("İstanbul") == "Istanbul"
    for unchanged in ("plain", "été", "½ …", "天気", "e\u20dd"):
        assert composed(unchanged) == unchanged
    assert paired_runs("abc 天気 погода 날씨") == ["天気", "날씨"]


@pytest.mark.parametrize("stemmed", [(), ("russian", "arabic")])
def test_the_engine_keeps_every_word_whole(stemmed: tuple[str, ...]) -> None:
    analyzer = _analyzer(stemmed)
    for first, last in ((0x370, 0x1E00), (0x1F00, 0x2000), (0x3040, 0x3100), (0xA000, 0xAC00), (0xFB1D, 0xFDF0)):
        for code in range(first, last):
            letter = chr(code)
            if unicodedata.category(letter)[0] not in "LM" or unicodedata.category(letter) == "Me":
                continue
            for word in other_words(f"{letter}{letter}"):
                assert len(analyzer.analyze(word)) <= 1, (hex(code), word)


def test_long_words_are_cut_where_the_engine_would_drop_them() -> None:
    analyzer = _analyzer()
    for letter in "жაع":
        (word,) = other_words(letter * 100)
        assert analyzer.analyze(word) == [word]
        assert len(word) >= 13


@pytest.mark.parametrize(
    ("word", "is_so"),
    [
        *(("weather", True), ("погода", True), ("καιροσ", True), ("ამინდი", True), ("եղանակ", True)),
        *(
            ("天気予報", False),
            ("날씨예보", False),
            ("อากาศ", False),
            ("الطقس", False),
            ("cat", False),
            ("abc1", False),
        ),
    ],
)
def test_only_alphabets_are_corrected(word: str, is_so: bool) -> None:
    assert correctable(word) == is_so


def test_a_very_long_text() -> None:
    assert len(other_words("天気" * 50_000)) == 99_999
    assert other_words("\u0301" * 100_000) == []
    assert other_words("ก" + "\u0e49" * 1000) == ["ก"]
