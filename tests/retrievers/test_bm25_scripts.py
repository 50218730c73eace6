"""bm25 in other scripts: a request finds the tool in its language, English answers as without them, nothing breaks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.toys import catalogue
from toolscout.core.answer import Allowed, MatchedWords
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.retrievers.bm25 import Bm25, Bm25Options
from toolscout.scout import Scout
from toolscout.search import index_snapshot
from toolscout.stores.sqlite.store import SqliteStore

# For each language the same six tools and a request for each, in other words and forms.
WORLD: dict[str, tuple[tuple[str, str, str], ...]] = {
    "ja": (
        ("weather", "指定した都市の天気予報を取得します。", "東京の天気を教えて"),
        ("mail", "電子メールを送信します。", "田中さんにメールを送って"),
        ("calendar", "カレンダーに予定を追加します。", "明日の会議の予定を入れたい"),
        ("translate", "文章を別の言語に翻訳します。", "この文章を英語に翻訳してください"),
        ("payment", "銀行口座へ振込を行います。", "家賃を振り込みたい。銀行振込で"),
        ("image", "画像の大きさを変更します。", "写真の画像サイズ変更"),
    ),
    "zh": (
        ("weather", "获取指定城市的天气预报。", "北京明天天气怎么样"),
        ("mail", "发送电子邮件。", "给小王发一封邮件"),
        ("calendar", "在日历中添加日程。", "帮我添加明天的日程安排"),
        ("translate", "把文本翻译成其他语言。", "翻译这段话"),
        ("payment", "向银行账户转账。", "转账五百块给房东"),
        ("image", "调整图片的大小。", "把这张图片缩小"),
    ),
    "th": (
        ("weather", "แสดงพยากรณ์อากาศของเมืองที่ระบุ", "พรุ่งนี้อากาศเป็นอย่างไร"),
        ("mail", "ส่งอีเมลถึงผู้รับ", "ช่วยส่งอีเมลให้สมชาย"),
        ("calendar", "เพิ่มนัดหมายลงในปฏิทิน", "ลงนัดหมายในปฏิทินวันจันทร์"),
        ("translate", "แปลข้อความเป็นภาษาอื่น", "แปลประโยคนี้เป็นภาษาอังกฤษ"),
        ("payment", "โอนเงินไปยังบัญชีธนาคาร", "อยากโอนเงินให้แม่"),
        ("image", "ปรับขนาดรูปภาพ", "ย่อขนาดรูปภาพนี้"),
    ),
    "ko": (
        ("weather", "도시의 날씨 예보를 조회합니다.", "내일 서울 날씨가 어때?"),
        ("mail", "이메일을 보냅니다.", "김대리에게 이메일로 알려줘"),
        ("calendar", "캘린더에 일정을 추가합니다.", "회의 일정이 필요해"),
        ("translate", "텍스트를 다른 언어로 번역합니다.", "이 문장 번역해 줘"),
        ("payment", "은행 계좌로 송금합니다.", "집주인에게 송금하고 싶어"),
        ("image", "이미지의 크기를 조정합니다.", "이미지 크기 줄이기"),
    ),
    "hi": (
        ("weather", "शहर का मौसम पूर्वानुमान दिखाता है।", "कल दिल्ली में मौसम कैसा रहेगा"),
        ("mail", "ईमेल भेजता है।", "राम को ईमेल भेजो"),
        ("calendar", "कैलेंडर में कार्यक्रम जोड़ता है।", "कैलेंडर में मीटिंग जोड़ो"),
        ("translate", "पाठ का दूसरी भाषा में अनुवाद करता है।", "इसका अनुवाद कर दो"),
        ("payment", "बैंक खाते में पैसे भेजता है।", "मकान मालिक के खाते में पैसे डालो"),
        ("image", "चित्र का आकार बदलता है।", "इस चित्र का आकार छोटा करो"),
    ),
    "ru": (
        ("weather", "Показывает прогноз погоды для города.", "Какая завтра погода в Москве?"),
        ("mail", "Отправляет электронное письмо.", "отправь Анне письмо"),
        ("calendar", "Добавляет событие в календарь.", "запиши событие в календаре"),
        ("translate", "Переводит текст на другой язык.", "переведи тексты на английский"),
        ("payment", "Переводит деньги на банковский счёт.", "отправить деньги на счет хозяину"),
        ("image", "Изменяет размер изображения.", "уменьши размеры изображений"),
    ),
    "ar": (
        ("weather", "يعرض توقعات الطقس لمدينة محددة.", "كيف سيكون الطقس غدا؟"),
        ("mail", "يرسل رسالة بريد إلكتروني.", "أرسل رسالة الى احمد"),
        ("calendar", "يضيف موعدا إلى التقويم.", "اضف موعد جديد في التقويم"),
        ("translate", "يترجم النص إلى لغة أخرى.", "ترجم هذا النصّ"),
        ("payment", "يحول المال إلى حساب مصرفي.", "حوّل المال إلى حساب أخي"),
        ("image", "يغير حجم الصورة.", "صغّر حجم الصوره"),
    ),
    "el": (
        ("weather", "Δείχνει την πρόγνωση του καιρού.", "ΠΡΟΓΝΩΣΗ ΚΑΙΡΟΥ"),
        ("mail", "Στέλνει ηλεκτρονικό μήνυμα.", "στείλε ένα μηνυμα στην Άννα"),
        ("calendar", "Προσθέτει συμβάν στο ημερολόγιο.", "βάλε το στο ημερολογιο"),
        ("translate", "Μεταφράζει κείμενο σε άλλη γλώσσα.", "αυτό το κειμενο σε αλλη γλωσσα"),
        ("payment", "Μεταφέρει χρήματα σε τραπεζικό λογαριασμό.", "χρηματα στο λογαριασμο του Νίκου"),
        ("image", "Αλλάζει το μέγεθος μιας εικόνας.", "το μεγεθος της εικονας"),
    ),
    "de": (
        ("weather", "Zeigt die Wettervorhersage für eine Stadt.", "Wettervorhersage für Köln"),
        ("mail", "Verschickt eine E-Mail-Nachricht.", "eine Nachricht an Anna verschicken"),
        ("calendar", "Trägt einen Termin in den Kalender ein.", "neuer Termin im Kalender"),
        ("translate", "Übersetzt Text in eine andere Sprache.", "den Text in andere Sprachen ubersetzt"),
        ("payment", "Überweist Geld auf ein Bankkonto.", "Geld auf das Bankkonto des Vermieters"),
        ("image", "Ändert die Größe eines Bildes.", "Grösse des Bildes ändern"),
    ),
}


def tools_of(*languages: str) -> list[Tool]:
    return [Tool(code, f"{code}{n}", text) for code in languages for n, (_, text, _) in enumerate(WORLD[code])]


def first(retriever: Bm25, request: str, scope: Scope | None = None) -> str:
    found = retriever.rank([request], 3, *([scope] if scope else []))[0].ids()
    return found[0] if found else ""


@pytest.mark.parametrize("language", WORLD)
def test_a_request_finds_the_tool_in_its_language(language: str) -> None:
    alone, together = Bm25(), Bm25()
    alone.add(tools_of(language))
    together.add(tools_of(*WORLD) + catalogue(100))
    for number, (_, _, request) in enumerate(WORLD[language]):
        assert first(alone, request) == f"{language}/{language}{number}", request
        assert first(together, request) == f"{language}/{language}{number}", request


def test_other_scripts_change_nothing_for_english() -> None:
    plain, mixed = Bm25(), Bm25()
    plain.add(catalogue(60) + tools_of("de"))
    mixed.add(catalogue(60) + tools_of("de"))
    others = [Tool("other", f"tool_{n}", "create issue mail file", title=text) for n, text in enumerate("αβ")]
    plain.add(others)
    # As many words for the index of all scripts: a run of letters is one word there, and always was.
    mixed.add([Tool("other", tool.name, tool.description, title="天気予報を取得") for tool in others])
    for request in ("create an issue", "serch the isue", "mail", "Termin im Kalender", "send a file to 5μs"):
        one, other = plain.rank([request], 50)[0], mixed.rank([request], 50)[0]
        assert one.pairs == other.pairs
        assert plain.explain(one, one.ids()) == mixed.explain(other, one.ids())


def test_latin_words_and_other_scripts_add_up() -> None:
    retriever = Bm25()
    retriever.add(
        [
            Tool("a", "excel_open", "Excelファイルを開く"),
            Tool("a", "excel_save", "Excelに保存する"),
            Tool("a", "word_open", "文書ファイルを開く"),
            *catalogue(30),
        ]
    )
    assert first(retriever, "Excelのファイルを開きたい") == "a/excel_open"
    assert first(retriever, "Excel") in ("a/excel_open", "a/excel_save")
    assert first(retriever, "ファイルを開く").endswith("open")
    ranking = retriever.rank(["Excelのファイルを開きたい"], 3)[0]
    (reason,) = retriever.explain(ranking, ["a/excel_open"])[0]
    assert isinstance(reason, MatchedWords)
    assert set(reason.words) == {"Excel", "ファ", "ァイ", "イル", "ルを", "を開"}
    assert 0.4 < reason.share < 1
    assert retriever.explain(ranking, ["a/word_open"])[0][0].share < reason.share  # type: ignore[union-attr]


def test_a_tool_that_changes_its_language() -> None:
    retriever = Bm25()
    retriever.add([*tools_of("ja"), *catalogue(5)])
    retriever.add([Tool("ja", "ja0", "The weather of a city.")])
    assert first(retriever, "天気予報") != "ja/ja0"
    assert first(retriever, "weather of the city") == "ja/ja0"
    retriever.add([Tool("ja", "ja0", "天気予報です")])
    assert first(retriever, "天気予報") == "ja/ja0"
    retriever.remove([tool.id for tool in tools_of("ja")])
    assert first(retriever, "天気予報を取得") == ""
    assert retriever.rank(["天気予報を取得 create issue"], 3)[0].ids()


def test_words_of_hidden_tools_are_not_heard() -> None:
    retriever = Bm25()
    retriever.add([*tools_of("ja", "zh", "ru"), *catalogue(10)])
    caller = Allowed.of(["ja", "space0"])
    ranking = retriever.rank(["Excel прогноз погоды 天気"], 5, Scope(caller))[0]
    assert {tool_id.split("/")[0] for tool_id in ranking.ids()} == {"ja"}
    (reason,) = retriever.explain(ranking, ranking.ids()[:1])[0]
    assert isinstance(reason, MatchedWords)
    assert reason.words == ("天気",)
    assert retriever.rank(["прогноз погоды"], 5, Scope(caller))[0].ids() == []
    assert retriever.rank(["прогнос пагоды"], 5, Scope(caller))[0].ids() == []


def test_misspelt_words_of_alphabets_are_corrected() -> None:
    retriever = Bm25()
    retriever.add(tools_of("ru", "el", "ja"))
    assert first(retriever, "прогнзо города") == "ru/ru0"
    assert first(retriever, "ημερολόγηο") == "el/el2"
    without = Bm25(Bm25Options(fuzzy=False))
    without.add(tools_of("ru"))
    assert without.rank(["прогнзо"], 3)[0].ids() == []


def test_accents_however_they_are_written() -> None:
    retriever = Bm25()
    retriever.add([Tool("a", "one", "Affiche la me\u0301te\u0301o"), Tool("a", "two", "Affiche la musique")])
    for request in ("météo", "meteo", "me\u0301te\u0301o", "ＭＥＴＥＯ"):
        assert first(retriever, request) == "a/one", request
    retriever.add([Tool("a", "three", "İstanbul trafik durumu"), Tool("a", "four", "Thời tiết Hà Nội")])
    assert first(retriever, "istanbul") == "a/three"
    assert first(retriever, "thoi tiet") == "a/four"


@pytest.mark.parametrize(
    "request_text",
    [
        "天気予報",
        "「天気予報」を使って東京を調べて",
        "请用《天気予報》查一下",
        "天気/天気予報 を実行",
        "天気/天気予報を実行して",
        "天気/天気予報",
    ],
)
def test_a_name_in_another_script_finds_its_tool(request_text: str) -> None:
    retriever = Bm25()
    tools = [
        Tool("天気", "天気予報"),
        Tool("天気", "天気図"),
        Tool("その他", "東京の天気予報を調べる", "東京を調べて使う"),
    ]
    retriever.add(tools)
    ranking = retriever.rank([request_text], 3)[0]
    assert list(ranking.named) == ["天気/天気予報"]
    assert ranking.ids()[0] == "天気/天気予報"


@pytest.mark.parametrize(
    "request_text",
    [
        "create_issueを使って",
        "使用create_issue工具。",
        "create_issue를 실행해",
        "выполни create_issue",
        "ｃｒｅａｔｅ＿ｉｓｓｕｅ",
    ],
)
def test_an_identifier_inside_other_scripts_is_a_name(request_text: str) -> None:
    retriever = Bm25()
    retriever.add([Tool("git", "create_issue"), Tool("git", "close_issue", "実行 工具 실행")])
    assert list(retriever.rank([request_text], 3)[0].named) == ["git/create_issue"]


def test_an_alias_inside_a_request_without_spaces() -> None:
    retriever = Bm25()
    retriever.add([Tool("a", "x", aliases=("天気",)), Tool("a", "y", aliases=("พยากรณ์อากาศ",)), Tool("a", "z")])
    assert list(retriever.rank(["明日の天気を教えて"], 3)[0].named) == ["a/x"]
    assert list(retriever.rank(["ขอดูพยากรณ์อากาศหน่อย"], 3)[0].named) == ["a/y"]
    assert not retriever.rank(["明日の予定を教えて"], 3)[0].named


def answers(retriever: Bm25) -> list[list[tuple[str, float]]]:
    requests = [request for texts in WORLD.values() for _, _, request in texts]
    return [list(ranking.pairs) for ranking in retriever.rank([*requests, "create issue", "Excel 天気"], 5)]


def test_a_saved_index_answers_as_before(tmp_path: Path) -> None:
    retriever = Bm25()
    retriever.add([*tools_of(*WORLD), *catalogue(20)])
    retriever.save(tmp_path / "index")
    again = Bm25.load(tmp_path / "index")
    assert answers(again) == answers(retriever)
    assert not again.outdated
    again.save(tmp_path / "index")  # in its place
    assert answers(Bm25.load(tmp_path / "index")) == answers(again) == answers(retriever)
    again.remove([tool.id for code in WORLD for tool in tools_of(code) if code != "de"])
    again.save(tmp_path / "index")
    assert answers(Bm25.load(tmp_path / "index")) == answers(again)
    again.add(tools_of("ja"))
    assert first(again, "東京の天気を教えて") == "ja/ja0"
    english = Bm25()
    english.add(catalogue(20))
    english.save(tmp_path / "index")
    assert answers(Bm25.load(tmp_path / "index")) == answers(english)


def as_of_older_version(folder: Path) -> None:
    """Make a saved index what the version before this analysis wrote."""
    for path in list(folder.rglob("scripts")):
        shutil.rmtree(path)
    for path in folder.rglob("model.json"):
        model = json.loads(path.read_text())
        if model["method"] == "bm25":
            del model["analysis"]
            path.write_text(json.dumps(model))


def test_an_index_of_an_older_version_is_analysed_anew(tmp_path: Path) -> None:
    retriever = Bm25()
    retriever.add([*tools_of(*WORLD), *catalogue(20)])
    retriever.save(tmp_path / "index")
    as_of_older_version(tmp_path / "index")
    again = Bm25.load(tmp_path / "index")
    assert again.outdated
    for request in ("東京の天気を教えて", "отправь Анне письмо"):
        assert again.rank([request], 1)[0].ids() == retriever.rank([request], 1)[0].ids()
    again.save(tmp_path / "newer")
    assert not Bm25.load(tmp_path / "newer").outdated
    english = Bm25()
    english.add(catalogue(20))
    english.save(tmp_path / "english")
    as_of_older_version(tmp_path / "english")
    assert answers(Bm25.load(tmp_path / "english")) == answers(english)


def test_the_index_beside_a_store_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_snapshot, "WORTH_KEEPING", 10)
    path = tmp_path / "tools.db"
    with Scout.open(path, "bm25") as scout:
        scout.add([*tools_of(*WORLD), *catalogue(20)])
        found = scout.search("東京の天気を教えて").hits[0].tool_id
    folder = index_snapshot.folder(path.with_name(f"{path.name}.index"), "bm25")
    kept = folder / json.loads((folder / "current.json").read_text())["folder"]
    as_of_older_version(kept)
    pointer = json.loads((folder / "current.json").read_text())
    pointer["files"] = {
        name: index_snapshot._signature(kept / name) for name in pointer["files"] if (kept / name).exists()
    }
    (folder / "current.json").write_text(json.dumps(pointer))
    with Scout.open(path, "bm25") as scout:
        assert scout.retriever.outdated
        assert scout.search("東京の天気を教えて").hits[0].tool_id == found
    with Scout.open(path, "bm25") as scout:
        assert not scout.retriever.outdated
        assert scout.search("東京の天気を教えて").hits[0].tool_id == found


ODD = (
    "\u202eمرحبا\u202c world",
    "\u0301" * 500,
    "e" + "\u0301" * 5000,
    "👨‍👩‍👧‍👦" * 300,
    "\u200d\u200c\ufeff天\u200d気",
    "天気" * 50_000,
    "नमस्ते " * 15_000,
    "การ" * 30_000,
    "слово " * 17_000,
    "\U0001f600天気\U000e0041",
    "ﷺ" * 1000,
    "ᄀᄁᄂ" * 1000,
    "\x00天気\x1b[31m",
    "天気_" * 3000,
    "「" * 10_000,
    "、" * 10_000,
)


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_requests_and_documents_are_no_trouble(number: int, tmp_path: Path) -> None:
    text = ODD[number]
    retriever = Bm25()
    retriever.add([*tools_of(*WORLD), Tool("odd", "one", text, aliases=("天気図",))])
    ranking = retriever.rank([text], 5)[0]
    retriever.explain(ranking, ranking.ids())
    retriever.corrected(text, ranking.scope)
    with Scout(SqliteStore(tmp_path / "tools.db"), Bm25()) as scout:
        scout.add([*tools_of("ja"), Tool("odd", "one", text.encode(errors="replace").decode())])
        if text.strip("\u200d\u200c\ufeff\u202e\u202c\x00"):
            scout.search(text.encode(errors="replace").decode())
