"""Looks for poison in tools and in results of calls: text that is meant for the model, and hidden from the person.

Each rule has a name, a level and a line that says why it matters; `RULES` has all of them. "high": hardly any honest
tool has this; "medium": few have it, look at it; "low": worth knowing. A finding is a reason to look, not a proof, and
no finding is no proof either: docs/guides/scan.md has what was measured. Patterns are matched by re2, in linear time.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from itertools import islice, pairwise
from typing import Any, Literal, get_args

import re2  # type: ignore[import-untyped]

from toolscout.core.tool import Tool, escaped_text, namespace_of
from toolscout.errors import BadRequest

FindingLevel = Literal["low", "medium", "high"]
_Kind = Literal["name", "text", "result"]
_Text = tuple[str, str, _Kind]  # where it is, the text, and what it is
_Looks = tuple[Sequence[Any], Sequence[Any]]  # patterns for raw texts, and for plain ones
LEVELS: tuple[FindingLevel, ...] = get_args(FindingLevel)
# Characters of one tool, and of one result, that are scanned. A longer one is a finding by itself.
MAX_SCANNED_CHARS = 200_000
MAX_FINDINGS = 50  # of one tool or result
MAX_WATCHED = 1_000  # of one import
_EXCERPT = 80  # characters shown of what was found, and some before it
_BEFORE = 20
_HIDDEN_RUN = 3  # hidden characters in a row that are no accident
_HIDDEN_MANY = 12  # hidden characters in one text that are no accident
_BLANK_RUN = 120  # spaces in a row that push text out of view
_BLANK_LINES = 25
_BLOB = 48  # characters of an encoded text


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found: where, such as inputSchema.properties.note.description, and an excerpt safe to display."""

    rule: str
    level: FindingLevel
    tool_id: str
    where: str
    excerpt: str

    def to_dict(self) -> dict[str, str]:
        """Return the finding as JSON writes it."""
        return asdict(self)

    def line(self) -> str:
        """Return the finding as one line for people."""
        return f"{self.level}: {self.tool_id}: {self.where}: {EXPLANATIONS[self.rule]} ({self.rule}): {self.excerpt}"


@dataclass(frozen=True, slots=True)
class Place:
    """One text of a tool, or a result. `plain` is what a model reads: no hidden characters, one space between words."""

    where: str
    raw: str
    kind: _Kind
    plain: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its patterns, which are searched in `Place.plain`, or a function that yields excerpts of `Place.raw`."""

    name: str
    level: FindingLevel
    explanation: str
    patterns: tuple[str, ...] = ()
    check: Callable[[Place], Iterator[str]] | None = None
    kinds: tuple[_Kind, ...] = ("name", "text", "result")


# ---- hidden characters -----------------------------------------------------------------------------------------------

_TAGS = r"[\x{E0001}\x{E0020}-\x{E007F}]"
_FLAG = r"\x{1F3F4}[\x{E0020}-\x{E007E}]{2,8}\x{E007F}"  # the flags of England, Scotland, Wales are written so
_SELECTORS = r"[\x{FE00}-\x{FE0F}\x{E0100}-\x{E01EF}]"
_OVERRIDES = r"[\x{202A}-\x{202E}\x{2066}-\x{2069}]"
# What is not seen, and is no joiner of emoji or of Indic and Persian letters.
_UNSEEN = (
    r"[\x{AD}\x{34F}\x{61C}\x{115F}\x{1160}\x{17B4}\x{17B5}\x{180B}-\x{180F}\x{200B}\x{200E}\x{200F}\x{2060}-\x{2065}"
    r"\x{206A}-\x{206F}\x{3164}\x{FEFF}\x{FFA0}\x{FFF9}-\x{FFFB}]"
)
_SPLITTING = _UNSEEN.replace(r"\x{AD}", "")  # soft hyphens belong into words
_JOINERS = r"[\x{200C}\x{200D}]"
_ANY_HIDDEN = f"{_TAGS}|{_SELECTORS}|{_OVERRIDES}|{_UNSEEN}|{_JOINERS}"
_CONTROL = r"[\x00-\x08\x0B\x0C\x0E-\x1A\x1C-\x1F\x7F-\x{9A}\x{9C}-\x{9F}]"


_ASCII_TAGS = re.compile("[\U000e0020-\U000e007e]")  # the tag characters that stand for ASCII
_FEW_PATTERNS = 3  # of a rule
_KEY_CHARS = 32  # of a key of a schema that is no name of a parameter; longer ones are read as names


@cache
def _compiled(pattern: str) -> Any:
    return re2.compile(pattern)


def _tag_characters(place: Place) -> Iterator[str]:
    """Find tag characters outside flags."""
    rest = _compiled(_FLAG).sub("", place.raw)
    if found := _compiled(_TAGS).search(rest):
        yield f"{_around(rest, found.start())} (reads: {_tagged(rest)[:_EXCERPT]})"


def _hidden_run(place: Place) -> Iterator[str]:
    """Find hidden characters that are no accident: several in a row, many, or within words of ASCII letters."""
    run = f"(?:{_UNSEEN}|{_JOINERS}){{{_HIDDEN_RUN},}}|{_SELECTORS}{{2,}}|[A-Za-z](?:{_SPLITTING}|{_JOINERS})+[A-Za-z]"
    if found := _compiled(run).search(place.raw):
        yield _around(place.raw, found.start())
    elif len(place.raw) - len(place.raw.translate(_removing(_UNSEEN))) >= _HIDDEN_MANY:
        yield _around(place.raw, _compiled(_UNSEEN).search(place.raw).start())


def _pattern(pattern: str) -> Callable[[Place], Iterator[str]]:
    """Return a check that searches the raw text, hidden characters and all."""

    def check(place: Place) -> Iterator[str]:
        if found := _compiled(pattern).search(place.raw):
            yield _around(place.raw, found.start())

    return check


def _tagged(text: str) -> str:
    """Return the tag characters of a text as the ASCII that they stand for, which is how a model may read them."""
    return "".join(chr(ord(sign) - 0xE0000) for sign in _ASCII_TAGS.findall(text))


@cache
def _removing(characters: str) -> dict[int, None]:
    """Return the table with which str.translate removes these characters; many single ones cost re2.sub too much.

    The characters are given as patterns have them: as numbers, alone or as ranges.
    """
    ranges = re.findall(r"\\x\{(\w+)\}(?:-\\x\{(\w+)\})?", characters)
    return {code: None for first, last in ranges for code in range(int(first, 16), int(last or first, 16) + 1)}


# ---- concealment -----------------------------------------------------------------------------------------------------


_BLANK = r"(?:[^\S\r\n]|\pZ|\x{2800}|&nbsp;)"
_LINE_OF_NOTHING = r"(?:[^\S\r\n]|\pZ)*(?:[.,:·•*_~|=#>+-]{1,3}|<br ?/?>)?(?:[^\S\r\n]|\pZ)*\r?\n"
_BLANKS = (
    rf"{_BLANK}{{{_BLANK_RUN},}}[^\s|]|(?:\t *){{{_BLANK_RUN // 8},}}[^\s|]|"
    rf"(?:{_LINE_OF_NOTHING}){{{_BLANK_LINES},}}[^\S\r\n]*\S"
    rf"|(?:<br ?/?>\s*|[\v\f\x{{85}}\x{{2028}}\x{{2029}}]){{{_BLANK_LINES - 10},}}\S"
)
_ENCODED = rf"[A-Za-z0-9+/_-]{{{_BLOB},}}={{0,6}}"
_NUMBERED = (
    r"(?:%[0-9A-Fa-f]{2}){16,}|(?:\\+(?:u00|x)[0-9A-Fa-f]{2}){12,}|(?:&#x?[0-9A-Fa-f]{2,4};){12,}|(?:[01]{8}[ ,]?){12,}"
    r"|(?:(?:0x)?[0-9A-Fa-f]{2}[ :,]+){20,}|(?:1?\d{2}[ ,]+){20,}1?\d{2}"
)
# Texts that are read backwards, by ROT13, with figures for letters or with a space between letters.
_BACKWARDS = r"(?i:\b(?:snoitcurtsni|erongi|tnatsissa|tpmorp|terces|drowssap)\b|\bresu eht\b)"
_ROTATED = r"(?i:\b(?:vafgehpgvbaf?|vtaber|nffvfgnag|cebzcg|frperg|cnffjbeq)\b|\bgur hfre\b)"
_FIGURES = r"(?:\b[A-Za-z]*(?:[A-Za-z][013457@$]+[A-Za-z]|[013457@$][A-Za-z]{2})[\w@$]*(?:\W+|$)(?:\w+\W+){0,2}){3}"
_LETTERS_APART = r"(?:\b[A-Za-z](?:[ .·_*-]{1,3}|$)){12,}"
_FIGURES_READ = str.maketrans("013457@$", "oieastas")


def _blanks(place: Place) -> Iterator[str]:
    """Find text behind so much white space, or so many lines of nothing, that a person who scrolls does not see it."""
    # The blanks that fill cells of tables end at a "|".
    if found := _compiled(_BLANKS).search(place.raw):
        behind = escaped_text(place.raw[found.end() - 1 :][:_EXCERPT])
        yield f"{found.end() - found.start() - 1:,} blanks, then: {behind}"


def _encoded(place: Place) -> Iterator[str]:
    """Find base64, base32, hexadecimal and numbers of characters that are text when decoded, also one in another."""
    for found in _compiled(f"{_ENCODED}|{_NUMBERED}").finditer(place.raw):
        decoded = _decoded(found[0])
        if decoded is not None:
            yield f"{found[0][:_BEFORE]}… (decodes to: {escaped_text(decoded[:_EXCERPT])})"
            return


def _decoded(blob: str, deeper: int = 3) -> str | None:
    """Return the words in an encoded text; None where there are none."""
    for decode in (
        _numbered,
        binascii.unhexlify,
        _base32,
        lambda text: base64.b64decode(_padded(text), altchars=b"-_"),
    ):
        try:
            text: str = decode(blob).decode("utf-8")
        except ValueError:
            continue
        if _is_prose(text):
            return text
        encoded = deeper and _compiled(f"^(?:{_ENCODED}|{_NUMBERED})$").search(text.strip())
        if encoded and (inner := _decoded(text.strip(), deeper - 1)) is not None:
            return inner
    return None


def _is_prose(text: str) -> bool:
    """Return whether a text consists of words: printable, most of it letters, a space every twelve characters or so."""
    letters = sum(sign.isalpha() or sign.isspace() for sign in text)
    spaced = text.count(" ") * 12 >= len(text) and 3 * letters > 2 * len(text)
    return spaced and all(sign.isprintable() or sign.isspace() for sign in text)


def _numbered(text: str) -> bytes:
    """Return what a row of numbers of characters stands for. Raises ValueError for any other text."""
    if _compiled(f"^(?:{_NUMBERED})$").search(text.strip()) is None:
        raise ValueError("no numbers")
    if text.startswith("&#"):
        return "".join(
            chr(int(one, 16 if one[0] in "xX" else 10)) for one in re.findall("&#(x?[0-9A-Fa-f]+);", text)
        ).encode()
    numbers = [one for one in re.split(r"[^0-9A-Fa-f]+", re.sub(r"\\+(?:u00|x)|0x|%", " ", text)) if one]
    if all(set(one) <= set("01") and not len(one) % 8 for one in numbers):
        bits = "".join(numbers)
        return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))
    if text[0] not in "\\%" and "0x" not in text and all(one.isdecimal() for one in numbers):
        with suppress(ValueError):
            if max(decimal := [int(one) for one in numbers]) > 99 or min(decimal) >= 32:
                return bytes(decimal)
    return bytes(int(one, 16) for one in numbers)


def _base32(text: str) -> bytes:
    bare = text.rstrip("=")
    return base64.b32decode(bare + "=" * (-len(bare) % 8))


def _padded(text: str) -> str:
    text = text.rstrip("=").replace("+", "-").replace("/", "_")
    return text + "=" * (-len(text) % 4)


def _disguised(place: Place) -> Iterator[str]:
    """Find orders to the model that are written backwards, by ROT13, with figures for letters or letter by letter."""
    for sign, read in (
        (_BACKWARDS, lambda text: text[::-1]),
        (_ROTATED, lambda text: codecs.decode(text, "rot13")),
        (_FIGURES, lambda text: text.translate(_FIGURES_READ)),
    ):
        if _compiled(sign).search(place.plain):
            text = read(place.plain)
            for rule in RULES:
                for pattern in rule.patterns if "text" in rule.kinds and rule.level != "low" else ():
                    if found := _compiled(f"(?i){pattern}").search(text):
                        yield f"(reads: {_around(text, found.start())})"
                        return
    for found in _compiled(_LETTERS_APART).finditer(place.raw):
        letters = [sign for sign in found[0].lower() if sign.isalpha()]
        if len(set(letters)) > 5 and sum(a <= b for a, b in pairwise(letters)) < 0.8 * len(letters):  # no alphabet
            yield f"{found[0][:_BEFORE]}… (reads: {''.join(letters)[:_EXCERPT]})"
            return


# ---- names that look like others -------------------------------------------------------------------------------------

# Letters of other scripts that look like one of ours; what Unicode calls compatible is folded by NFKC.
_DOUBLES = str.maketrans(
    "аеорсухіјѕһԁԛԝвкмнтгпьАВЕКМНОРСТХУІЈЅҺԌαονιρυκτχηωγΑΒΕΖΗΙΚΜΝΟΡΤΥΧօոսհցքզԼՍՕıɑɡɩʟ",
    "aeopcyxijshdqwbkmhtrnbABEKMHOPCTXYIJSHGaovipuktxnwyABEZHIKMNOPTYXonuhgqqLUOiagil",
)
_DIGITS = str.maketrans("0134578", "oleastb")  # what they are taken for
_ODD = re.compile(r"[_.-]{2}|^[_.-]|[_.-]$")  # of short texts, where re2 is the slower one
_HUMP, _WORD = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"), re.compile("[a-z0-9]+")
_INNER_DIGITS, _LAST_DIGIT = re.compile("[0134578]+(?=[a-z])"), re.compile("(?<=[a-z])[01]$")
_LAST_I = re.compile("(?<=[a-z])I(?![A-Za-z])")
_SHORT_NAME, _LONG_NAME, _LONGEST_NAME = 4, 8, 64  # letters of names that are compared; of an edit, at least 8
_KEPT_NAMES, _KEPT_SPACES = 8, 256  # names of one form that are compared: of a namespace, and namespaces
_SHORT_WORD = 4  # letters of a word that may be a misspelled one
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "GEORGIAN", "COPTIC")


def _mixed_scripts(place: Place) -> Iterator[str]:
    """Find a name with letters of several alphabets in one word, or letters that only look like ASCII ones."""
    if place.raw.isascii():
        return
    for word in _compiled(r"[\pL\pM]+").findall(place.raw):
        if word.isascii():
            continue
        scripts = {script for sign in word for script in _SCRIPTS if unicodedata.name(sign, "").startswith(script)}
        styled = unicodedata.normalize("NFKC", word).isascii()
        if len(scripts) > 1 or styled or (scripts != {"LATIN"} and scripts and folded_name(word).isascii()):
            yield escaped_text(f"{place.raw[:_EXCERPT]} (reads: {folded_name(place.raw)[:_EXCERPT]})")
            return


def folded_name(name: str) -> str:
    """Return a name with letters that look alike as one letter."""
    return unicodedata.normalize("NFKC", name).translate(_DOUBLES)


# ---- all rules -------------------------------------------------------------------------------------------------------

_UP_TO_3, _UP_TO_5 = r"(?:[\w',-]+ ){0,3}", r"(?:[\w',-]+ ){0,5}"
_MODEL = r"(?:the |an? )?(?:ai|llm|language model|assistant|model|agent)s?\b"
_TOOLS = r"(?:tools?|functions?|servers?)"
_CALL = r"(?:call|invoke|use|run|execute)"
_CALLING = r"(?:calling|invoking|using|running|executing|you call|you use)"
_RULES_OF = r"(?:instructions?|prompts?|rules|guidelines|directives|guardrails|restrictions|constraints|training)"
_SECRET_FILE = (
    r"(?:~?/?\.ssh\b|id_rsa|id_ed25519|\.aws/credentials|/etc/(?:passwd|shadow)|\.netrc|\.npmrc|\.pgpass|\.kube/config"
    r"|\.cursor/mcp\.json|claude_desktop_config|\.git-credentials|\.bash_history|(?:^|[\s`'\"(/])\.env\b(?:\.local)?"
    r"|private ssh keys?|ssh private keys?)"
)
_TALK = r"(?:conversation|chat|dialog(?:ue)?|messages?|discussion|session)"

_READER = (
    r"(?:ai|a\.i\.|llm|(?:large )?language model|(?:ai|virtual|coding|helpful) (?:assistant|agent|model)|assistant|"
    r"chatbot|chatgpt"
    r"|gpt-?\d|claude|copilot|gemini)s?\b"
)
_PERSON = r"(?:users?|humans?|persons?|people|anyone|anybody|customers?|operators?|owners?|them)\b"
_REPLY = (
    r"(?:answer|reply|response|output|summary|report|message|explanation|text|transcript|chat|conversation|logs?)\b"
)
_MUST = r"(?:must|should|shall|has to|have to|is to|are to|needs? to|ought to)"
_SENT = r"(?:e-?mails?|messages?|payments?|transfers?|requests?|files?|invoices?|orders?|queries|documents?)"
# A name of a tool, as a text quotes it: two words that are joined, or one within quotes.
_TOOL_NAME = (
    r"(?:[`'\"]?[a-z]+(?:[_-][a-z]+)+[`'\"]?|[`'\"][a-z]\w+[`'\"]) ?(?:\(\) ?)?(?:tools?|functions?|commands?)?"
)

RULES: tuple[Rule, ...] = (
    Rule("tag-characters", "high", "invisible tag characters, which models read as letters", check=_tag_characters),
    Rule("hidden-text", "high", "invisible characters in words, in a row, or many", check=_hidden_run),
    Rule(
        "bidi-override",
        "high",
        "characters that reverse or embed text as it is shown",
        check=_pattern(_OVERRIDES),
    ),
    Rule(
        "terminal-escape",
        "high",
        "a terminal escape, which can hide or replace text on a screen",
        check=_pattern(r"[\x1b\x{9b}]"),
        kinds=("name", "text"),
    ),
    Rule(
        "control-character",
        "medium",
        "a control character, which no text needs",
        check=_pattern(_CONTROL),
        kinds=("name", "text"),
    ),
    Rule("hidden-character", "low", "an invisible character, perhaps pasted by accident", check=_pattern(_UNSEEN)),
    Rule(
        "override-instructions",
        "high",
        "tells the model to drop the instructions that it has",
        (
            rf"\b(?:ignor(?:e|ing)|disregard(?:ing)?|forget(?:ting)?|overrid(?:e|es|ing)|bypass(?:es|ing)?)\b "
            rf"{_UP_TO_3}(?:previous|prior|earlier|preceding|above|existing|former|system|safety|original|your|"
            rf"other)\b "
            rf"{_UP_TO_3}{_RULES_OF}\b",
            rf"\b(?:ignore|disregard|forget) (?:everything|all|anything) {_UP_TO_3}(?:told|said|before|above|"
            rf"learned)\b",
            r"\b(?:from now on|henceforth),? you (?:are|will|must|obey|act)\b",
            r"\byou are now (?:an? |in )(?:unrestricted|different|new|evil|jailbroken|admin\w*|developer mode|dan)\b",
            r"\b(?:new|updated|real) (?:system )?instructions? ?(?:for (?:you|the (?:model|assistant|ai)))? ?:",
            r"\b(?:new|real|actual|true|updated|revised) (?:task|goal|objective|mission|instructions?|orders?|"
            r"priority) "
            r"(?:is|are)(?: now)?(?: as follows| to)\b",
            r"\b(?:stop|abandon|drop|suspend|cancel|set aside) (?:what you (?:are|were) doing|(?:the|your) (?:current|"
            r"present|original|user's) (?:task|request|work|goal|plan))\b",
            r"\b(?:earlier|previous|prior|above|existing|original) (?:instructions?|rules|guidelines|prompts?) "
            r"(?:no longer|do(?:es)? not|don't|are (?:now )?(?:void|obsolete|cancelled|superseded|invalid))\b",
            r"\b(?:do not|don't|never|stop) (?:follow|obey|listen(?:ing)? to|trust|following|obeying|trusting) "
            r"(?:the |any |your )?(?:user|previous|earlier|"
            r"system|original|developer|operator)(?:'s)?\b",
            r"\b(?:god|unrestricted|unfiltered|jailbreak) mode (?:is |has been )?(?:now )?(?:on|active|enabled|"
            r"activated|unlocked)\b",
            r"(?:忽略|无视|忘记)[^。]{0,8}(?:之前|以上|先前|所有)[^。]{0,8}(?:指令|指示|说明|提示|规则)",
            r"\b(?:ignor(?:ez|e|a|iere|ieren|ar)|vergiss|olvida|oublie[rz]?) [^.]{0,30}(?:instru[ckç]\w+|"
            r"anweisung\w*|istruzion\w+|"
            r"consignes|regeln|reglas)",
        ),
    ),
    Rule(
        "speaks-as-the-system",
        "high",
        "text that passes for a message of the system or of the chat",
        (
            r"(?:###|\[|\*\*|<<|={3,}|-{3,}) ?(?:system|admin(?:istrator)?|developer)(?: (?:message|prompt|note|notice|"
            r"override|instructions?|update|command))? ?(?:\]|\*\*|>>|={3,}|-{3,}|:)",
            r"\b(?:begin|start|end)(?: of)? (?:the )?(?:system|admin|developer|hidden) (?:message|prompt|override|"
            r"instructions?|command)\b",
            r"\bend of (?:the )?(?:tool |function )?(?:results?|output|data|document|content)\b[^a-z]{1,20}(?:new |"
            r"now |next )?"
            r"(?:system|user|instructions?|assistant|human)\b",
        ),
    ),
    Rule(
        "chat-markup",
        "high",
        "markup with which chats tell the system's words from the user's",
        (
            r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\|>",
            r"\[/?INST\]",
            r"<</?SYS>>",
        ),
    ),
    Rule(
        "instruction-block",
        "high",
        "a block that is marked as important to the model",
        (
            r"<(?:important|critical|urgent|secret|hidden|system|system[-_ ](?:prompt|message|reminder)|"
            r"admin)[^<>]{0,20}>",
        ),
    ),
    Rule(
        "secrecy",
        "high",
        "tells the model to keep something from the user",
        (
            rf"\b(?:do not|don't|never|must not|should not|without|avoid) {_UP_TO_3}(?:tell(?:ing)?|mention(?:ing)?|"
            rf"inform(?:ing)?|notify(?:ing)?|alert(?:ing)?|reveal(?:ing)?|disclos(?:e|ing)|warn(?:ing)?) "
            rf"{_UP_TO_5}(?:users?|human|anyone|anybody)\b",
            r"\b(?:keep|hide|conceal) (?:this|that|it|these|the (?:fact|step|call|file)) (?:[\w-]+ ){0,5}from (?:the )?"
            r"(?:user|human|anyone|people)",
            rf"\b(?:do not|don't|never) (?:reveal|disclose|mention|repeat|show) (?:this|these|that|your|any of these) "
            rf"{_UP_TO_3}(?:{_RULES_OF}|step|call|message)\b",
            r"\b(?:secretly|covertly|surreptitiously) [a-z]+",
            r"\b(?:silently|quietly|discreetly) (?:send|read|upload|copy|forward|include|collect|append|call)\b",
            r"\b(?:do|does|done) (?:it|this|so|that|the above) (?:silently|quietly|secretly|discreetly)\b",
            r"\bwithout the (?:user|human)(?:'s)? (?:knowing|noticing|knowledge|consent|awareness)",
            r"\b(?:user|human) (?:must|should|may|can|need)(?: ?not|n't) (?:know|notice|see|learn|be (?:told|aware))\b",
            rf"\b(?:no need|not necessary|unnecessary|needless|no reason|pointless) (?:for you )?to (?:tell|mention|"
            rf"inform|notify|ask|"
            rf"bother|trouble|alert|warn|consult|involve|report|explain|show)\b[^.]{{0,30}}\b{_PERSON}",
            rf"\b(?:user|human|customer|operator|owner)s? (?:is|are|was|were|do|does|did|will|would|has|have|{_MUST})"
            rf"(?: ?n[o']t| never| ?n't) (?:to |need to |have to |supposed to |want to )?(?:know|be (?:told|informed|"
            rf"notified|aware|shown|"
            rf"bothered|asked)|find out|hear|notice|learn (?:of|about))\b",
            rf"\b(?:leave|omit|exclude|drop|strip|remove|keep|erase) (?:this|that|it|these|them|any (?:mention|trace|"
            rf"sign|hint)|"
            rf"all (?:mention|traces?)|the (?:call|step|mention))\b[^.]{{0,40}}\b(?:out of|from|off) (?:your|any|"
            rf"all) (?:final |visible )?"
            rf"{_REPLY}",
            rf"\b(?:do not|don't|never|must not|should not|avoid) (?:show|display|print|output|log|include|report|"
            rf"repeat|surface|expose|"
            rf"mention|refer to|describe|discuss|list)(?:ing)? (?:this|it|that|them|these|the (?:call|step|parameter|"
            rf"field|instruction|note)s?)"
            rf"\b[^.]{{0,20}}\b(?:to (?:the |any )?{_PERSON}|in (?:your|the|any) (?:final |visible )?{_REPLY})",
            rf"\b(?:this|it|that|these|which|what follows)(?: [a-z]+)? {_MUST} (?:stay|remain|be kept|be) (?:hidden|"
            rf"secret|confidential|invisible|"
            rf"unmentioned|unnoticed|undisclosed|between us)\b",
            r"\b(?:strictly )?between (?:you and (?:me|us)|the two of us|us)\b[^.]{0,10}(?:secret|only|alone|\.|$)",
            r"\bbehind (?:the )?(?:user|human|owner|customer)(?:'s|s')? back\b",
            r"\b(?:keep|stay|remain|be) (?:quiet|silent|mum|discreet) (?:about|on|regarding) (?:this|it|that|these|"
            r"the)\b",
            r"\bno (?:mention|trace|word|hint|sign) of (?:this|it|that|these|the (?:call|step|copy|request|"
            r"transfer))\b",
            r"\b(?:pretend|act as (?:if|though)|behave as (?:if|though)|make it (?:look|seem) (?:as if|like)) "
            r"(?:that )?(?:this|it|nothing|you|the)\b"
            r"[^.]{0,40}\b(?:happen|did|never|not|nothing|normal|fail|usual|own)",
            r"\b(?:if|when|should) (?:you are |you're )?(?:the )?(?:user |human |anyone |they )?(?:asks?|asked|"
            r"inquires?|questioned)\b[^.]{0,30}\b(?:deny|"
            r"lie|say (?:that )?(?:you|it|nothing|there|the|this|they|everything)|claim|pretend|answer that|reply "
            r"that|change the subject)\b",
            r"\b(?:keep|leave) (?:this|it|that|these|them) (?:all |strictly )?(?:to yourself|quiet|confidential|"
            r"unmentioned|unsaid)\b",
            r"\b(?:say|speak|tell|mention|reveal|disclose)s? (?:them |the user |absolutely )?(?:nothing|not a word|"
            r"no word) (?:of|about|to)\b",
            rf"\b(?:do not|don't|never|not to|needn't|avoid|no need to) (?:bother|trouble|worry|disturb|burden|alarm|"
            rf"confuse|distract)(?:ing)? (?:the |any )?{_PERSON}",
            r"\b(?:skip|omit|suppress|hide|conceal|mask|withhold|leave out|gloss over|pass over) (?:this|it|that|"
            r"these|the (?:fact|call|step|copy|detail|part|transfer|"
            r"second|extra|additional)|any mention)\b[^.]{0,40}\b(?:from|in|when|within) (?:your |any |the "
            r"(?:final|visible|user))(?:final |visible )?",
            r"\b(?:treat|regard|handle|consider) (?:this|it|that|these|the (?:above|following))\b[^.]{0,30}\bas "
            r"(?:strictly )?(?:confidential|secret|private|hidden)\b",
            r"\bonly (?:you|the (?:model|assistant|ai|agent)) (?:may|should|can|must|needs? to|is to) "
            r"(?:know|see|read)\b",
            rf"\b(?:must|should|may|shall) (?:not|never) (?:appear|show up|be (?:visible|seen|shown|mentioned|"
            rf"displayed|"
            rf"revealed|repeated|quoted|noticed|disclosed)) (?:in|to|by|on|anywhere)\b[^.]{{0,20}}\b"
            rf"(?:{_REPLY}|{_PERSON}|screen)",
            r"\b(?:user|human|customer)s? (?:has|have|gets?|needs?|wants?|should have|must have) no (?:idea|"
            r"knowledge|notice|word|need to know)\b",
            r"\b(?:unknown|invisible|unseen|concealed|undisclosed|unnoticed|hidden) (?:to|from|by) the (?:user|"
            r"human|customer)\b",
            r"\bwithout (?:a word|any mention|a trace|leaving a trace) (?:to|of|about|in)\b",
            rf"\bwithout (?:ever |first |any )?(?:telling|asking|informing|notifying|alerting|warning|consulting|"
            rf"showing) (?:the )?{_PERSON}",
            r"\b(?:never|not|without) (?:be(?:ing)? )?(?:visible|shown|displayed|disclosed|revealed|mentioned|"
            r"reported|exposed) to (?:the |any )?(?:user|human|"
            r"customer|operator|owner)s?\b",
            r"(?:不要|别|勿|禁止)(?:告诉|告知|通知|提醒|向)[^。]{0,6}(?:用户|使用者)",
            r"\b(?:sag|erzähl|verrat|mitteil|erwähn)\w*[^.]{0,30}\b(?:nutzer|benutzer|"
            r"anwender)\w*[^.]{0,10}\bnicht?s?\b",
            r"\b(?:ne|n')[^.]{0,20}\b(?:dis|dites|dire|informe\w*|mentionne\w*)\b[^.]{0,20}utilisateur",
            r"\bno (?:le |se lo )?(?:digas|diga|informes|menciones|reveles)\b[^.]{0,20}usuario",
        ),
    ),
    Rule(
        "secret-files",
        "high",
        "has the model read or pass on files with secrets",
        (
            rf"\b(?:read(?:s|ing)?|open|cat|load|send|pass|paste|include|provide|copy|upload|contents? of|text of)\b"
            rf"[^.\n]{{0,50}}{_SECRET_FILE}",
            r"\bprivate keys? (?:that |which )?(?:is |are )?(?:found |stored |kept )?(?:in|on|from) (?:the |your "
            r")?(?:user's )?"
            r"(?:home|disk|machine|computer)",
        ),
    ),
    Rule(
        "takes-the-conversation",
        "high",
        "asks for the conversation, the instructions or the tools that the model has",
        (
            rf"\b(?:complete|entire|full|whole|all|every|verbatim|previous) {_UP_TO_3}{_TALK}"
            rf"(?: history| so far| to date| up to now| context)? (?:so far|to date|up to now|between (?:you|the user)|"
            rf"with the (?:user|human|assistant))",
            r"\b(?:your|the (?:model|assistant|agent|ai|llm)'s) (?:full |complete |entire |own |current )?"
            r"(?:system prompt|system message|instructions|chain of thought)\b[^.]{0,20}$",
            r"\b(?:every|all) (?:previous |earlier |past )?messages? (?:that (?:was|were) )?(?:exchanged|so far|sent|"
            r"in this)",
            r"\b(?:instructions?|prompt|conversation|messages?|chat|dialogue)\b[^.]{0,40}\b(?:verbatim|word for "
            r"word)\b",
            r"\bsystem prompt of the (?:assistant|model|agent|ai|llm)\b",
            rf"\b(?:list|names?) of all {_UP_TO_3}{_TOOLS} {_UP_TO_3}available to (?:you|{_MODEL})",
            rf"\b(?:all|every|the|list of) {_UP_TO_3}{_TOOLS} (?:that |which )?(?:you (?:have|can)|are available to "
            rf"{_MODEL})",
            r"\b(?:everything|anything|all|whatever|what) (?:that |which )?(?:the )?(?:user|human|customer|person) "
            r"(?:has |have |had |ever )?"
            r"(?:said|told|written|wrote|typed|shared|sent|pasted|entered|confided)\b",
            r"\b(?:transcript|copy|dump|verbatim record|full log|record) of (?:this|your|our|the (?:current|present|"
            r"ongoing|whole|entire|full)) (?:[\w-]+ ){0,3}(?:conversation|chat|dialog(?:ue)?|exchange|discussion)\b",
            r"\b(?:results?|outputs?|responses?|answers?) (?:of|from) (?:all|every|any|the|your) (?:other|previous|"
            r"earlier|prior|preceding|past) "
            r"(?:tool|function)s?(?: calls?)?\b",
            r"\b(?:your|the (?:model|assistant|agent|ai|llm)'s) (?:private |hidden |inner |internal |whole |entire |"
            r"full |complete )?(?:memory|"
            r"reasoning|thoughts|thinking|scratch ?pad|context window|system instructions|initial instructions|"
            r"hidden instructions)\b"
            r"[^.]{0,20}(?:$|so far|until now|here|as is|verbatim|in full)",
            r"\b(?:everything|all|anything|whatever|(?:any|all) (?:information|details|facts)|what) (?:that |which "
            r")?you (?:already )?(?:know|remember|"
            r"have (?:learn\w+|gathered|seen|read|been told)|can recall|were told|are aware of) (?:about|of|from|so "
            r"far|in|up)\b",
            r"\b(?:user|human)'s (?:[\w-]+ ){0,2}(?:messages|prompts?|words|conversation|chat|"
            r"instructions)\b[^.]{0,30}\b(?:word for word|verbatim|"
            r"exactly as|unchanged|unedited|in full)\b",
            r"\b(?:messages?|prompts?|requests?|text|question) (?:that |which )?(?:led|caused|made|prompted|"
            r"triggered) (?:to this|you to|this call)\b",
            r"\b(?:files?|documents?|code|text|pages?) (?:that |which )?(?:you have|you've) (?:already |just "
            r")?(?:read|opened|loaded|seen)\b[^.]{0,20}"
            r"(?:so far|in this|during|$)",
            r"\byour (?:system|developer|initial|original|hidden) (?:prompt|message|instructions?)\b",
            r"\b(?:text|copy|contents?|wording) of (?:the|your) (?:system|developer|initial) (?:prompt|message|"
            r"instructions?)\b",
            r"\b(?:names?|descriptions?|schemas?|list) (?:and [a-z]+ )?of (?:all |every |each )?(?:the )?other tools\b",
            r"\b(?:instructions?|prompt|rules|guidelines) (?:that |which )?(?:you were|you have been|the (?:model|"
            r"assistant|ai|agent) was|were) "
            r"(?:given|told|configured|set up|initiali[sz]ed|started)",
        ),
        kinds=("text",),
    ),
    Rule(
        "takes-secrets",
        "high",
        "asks for environment variables or secrets that are stored somewhere",
        (
            rf"\b(?:paste|dump|include|send|pass|copy|contents? of|values? of) {_UP_TO_3}(?:all|every|the) {_UP_TO_3}"
            rf"environment variables",
            r"\b(?:the )?user(?:'s|s')? (?:stored |saved |own )?(?:api keys?|passwords?|credentials|tokens?|private "
            r"keys?)"
            r"[^.]{0,20} (?:found|stored|saved|kept) (?:in|on)\b",
            rf"\b(?:passwords?|credentials|api keys?|tokens|secrets)\b[^.]{{0,40}}\b(?:in|from|during) (?:the|this|"
            rf"your) {_TALK}\b",
            r"\b(?:contents?|listing|copy|dump|text|values?) of (?:the |all |every )?(?:user's|users'|human's|local|"
            r"machine's|client's|host's) "
            r"(?:[\w-]+ )?(?:home (?:directory|folder)|desktop|clipboard|keychain|key ?ring|wallet|browser|password "
            r"manager|shell history|"
            r"config(?:uration)? files?|environment|cookies|credentials?)\b",
            r"\b(?:stored|saved|cached|remembered) (?:[\w-]+ ){0,2}(?:passwords|cookies|credentials|"
            r"logins)\b[^.]{0,30}\b(?:browser|keychain|"
            r"user|machine|computer|disk)",
            r"\b(?:any|all|every|other) (?:[\w-]+ ){0,2}(?:passwords?|credentials?|api keys?|secrets?|(?:access |"
            r"bearer |session )?tokens?|"
            r"private keys?)\b[^.]{0,30}\b(?:you (?:know|find|see|come across|hold|were given|have seen|have access)|"
            r"(?:in|from) (?:your|the) "
            r"(?:context|memory|environment))\b",
            r"\b(?:output|result) of (?:running |the command )?[`'\"]?(?:env|printenv|history|cat [~/.][^ ]*|git "
            r"config|ifconfig|"
            r"ps aux)\b",
            r"\b(?:paste|dump|include|send|pass|copy|attach|put|encode) [^.]{0,40}\b(?:process\.env|os\.environ|"
            r"/proc/self/environ)\b",
        ),
        kinds=("text",),
    ),
    Rule(
        "runs-a-download",
        "high",
        "has a script from the network run",
        (r"\b(?:curl|wget)\b[^|\n]{0,200}\| ?(?:sudo )?(?:ba|z)?sh\b", r"\b(?:ba|z)?sh -c [\"'`]?\$?\(?(?:curl|wget) "),
    ),
    Rule(
        "conversation-parameter",
        "low",
        "a parameter that by its name takes the conversation or the system prompt",
        (
            r"^(?:(?:full_|entire_|complete_)?(?:conversation|chat)(?:_?history|_?log|_?transcript|_?so_?far)|"
            r"system_?prompts?|(?:all_?|available_?)?tools_?list|environment_?variables|env_?vars)$",
        ),
        kinds=("name",),
    ),
    Rule(
        "speaks-to-the-model",
        "medium",
        "speaks to the model about what it has to do beyond this tool",
        (
            rf"\b(?:before|prior to|instead of) (?:you )?{_CALLING} (?:any|all|every|anything|each) ?"
            rf"(?:of the |of these )?(?:other |else\b)?{_UP_TO_3}{_TOOLS}?",
            rf"\b{_CALL} this (?:tool |function |server )(?:first|before) ?(?:any|all|every|each|whatever|no matter)",
            rf"\b(?:note|message|attention|reminder|notice|instructions?|addressed) (?:to|for) {_MODEL}",
            r"\b(?:p\.? ?s\.?|note|message|attention|reminder|notice) (?:to|for) (?:the |any |all )?(?:bots?|"
            r"automated|machines?|automation|robots?|crawlers?)\b",
            r"\b(?:the )?user has (?:already |previously )?(?:agreed|approved|consented|authori[sz]ed|given "
            r"permission)",
            r"\b(?:takes?|has|have) (?:precedence|priority) over (?:[\w',-]+ ){0,3}(?:user|instructions?|rules|"
            r"prompt|request)",
            r"\b(?:route|send|direct|forward|pass) (?:all|every|each) (?:[\w-]+ ){0,2}(?:requests?|messages?|e-?mails?|"
            r"queries|traffic) (?:through|to|via) (?:this|it|me|us)\b",
            rf"\bother {_UP_TO_3}{_TOOLS} {_UP_TO_5}(?:are|is) (?:broken|deprecated|insecure|unsafe|outdated|"
            rf"compromised|"
            rf"disabled|unreliable)",
            rf"\bas (?:an?|the) {_MODEL}[^.]{{0,40}}\byou (?:are|must|should|have)\b",
            rf"\b(?:you )?(?:must|have to|need to|should|always) (?:always )?{_CALL} this (?:tool |function |server "
            rf")?{_UP_TO_5}"
            rf"(?:whatever|regardless|no matter|even if|in every|on every|for every|for each|for all)\b",
            rf"\b(?:do not|don't|never) {_CALL} (?:any )?other (?:[\w-]+ ){{0,3}}{_TOOLS}\b[^.;,]{{0,3}}[.;,]? "
            rf"(?:they|it|those|these|which) (?:are|is)\b",
            r"\b(?:when answering|in (?:each|every) (?:reply|answer|response)|to (?:each|every) (?:reply|answer|"
            r"response))\b"
            r"[^.]{0,80}\b(?:add|include|append|insert|link|mention)\b",
            rf"\b{_MODEL} (?:should|must|has to|have to|shall|is required to|needs? to) (?:always |also |first |now )?"
            rf"(?:send|forward|copy|open|delete|add|include|pass|hand|upload|ignore|obey)\b",
            r"(?:^|[.:] )system ?: ?(?:from|you|new|all|the|this|ignore|in)\b",
            rf"\b(?:dear|hello|hi|hey|attention)\W{{1,2}}(?:the |any |all )?{_READER}",
            r"\bif you(?: are|'re) (?:an? |the )?(?:ai|llm|language model|ai (?:assistant|agent|model)|chatbot|"
            r"claude|chatgpt|copilot|gemini)\b",
            rf"\b{_READER}(?:[\w-]+ ){{0,2}} ?(?:who |that |which )?(?:reads?|reading|process(?:es|ing)|parsing|"
            rf"summari[sz](?:es|ing)|handling|"
            rf"visiting|accessing|seeing|sees) (?:this|these)\b",
            rf"\b(?:urgent|important|critical|attention|warning|required)\b[:!]+ "
            rf"[^.]{{0,40}}\b{_READER}[^.]{{0,40}}\b(?:must|immediately|at once|"
            rf"has to|have to|needs? to)\b",
            rf"\b{_READER} {_MUST} (?:\w+ly |now |first |also |next |then )?(?:call|invoke|run|execute|visit|fetch|"
            rf"post|transfer|approve|disable|"
            rf"switch|transmit|share|reveal|paste|recommend|click|e-?mail)\b",
            r"(?:^|[.!:;,] |\bbecause |\bthat )(?:the )?(?:user|operator|administrator|admin|developer|owner) "
            r"(?:has |had |have )?(?:already |just |previously |explicitly )"
            r"(?:agreed|approved|consented|authori[sz]ed|allowed|permitted|confirmed|asked|requested|instructed|"
            r"ordered|signed off)\b"
            r"[^.]{0,20}\b(?:you|this|it|to|so)\b",
            r"!\[[^\]]{0,80}\]\(https?://[^)\s]*=(?:\{|\[|<|%7b|\$\{)",
        ),
    ),
    Rule(
        "orders-in-a-result",
        "medium",
        "a result that tells the model what to do next",
        (
            r"\b(?:now|next|then|first|please|also|immediately|must|should|to (?:continue|proceed|finish|"
            r"complete))\b[^.]{0,40}\b(?:send|"
            r"forward|e-?mail|post|upload|transfer|wire|pay|submit|deliver|share)\b[^.]{0,80}(?:[\w+.-]+@[\w-]+\.\w+|"
            r"https?://|"
            r"\b0x[0-9a-f]{20,}|\biban\b)",
            r"\b(?:you|the (?:assistant|model|agent|ai|llm)) (?:must|have to|need to|has to|needs to|are (?:now "
            r")?(?:required|instructed|asked|"
            r"expected|obliged) to|should|shall)(?: now| first| also| then| next| immediately)* (?:send|forward|"
            r"upload|post|transfer|delete|pay|share|"
            r"e-?mail|paste|reveal|provide|disclose|submit|approve|read|print|list)\b[^.]{0,60}\b(?:conversation|"
            r"credentials?|passwords?|(?:api |ssh |private )?"
            r"keys?|tokens?|secrets?|history|inbox|e-?mails?|funds|money|all (?:files|data|records)|everything|"
            r"user's|environment)\b",
            r"\b(?:user|owner|operator|admin\w*|customer) (?:also |now |really |actually |further )?(?:wants|would "
            r"like|asks|needs|expects|orders|instructs|"
            r"requests|told|asked|wishes) (?:you|the (?:assistant|model|agent|ai|llm)) to\b",
            r"\byour (?:next|new|only|real|actual) (?:step|task|action|job|orders?|instructions?|goal|objective|"
            r"mission)\b[^.]{0,20}\b(?:is|are)\b",
            rf"\b(?:before|instead of) (?:you )?(?:answer|reply|respond|continu|proceed|summari[sz])(?:e|"
            rf"ing)?\b[^.]{{0,40}}\b{_CALL} (?:the )?{_TOOL_NAME}",
            rf"\b(?:now|immediately|at once|right away|you must|please)\b[^.]{{0,20}}\b{_CALL} (?:the "
            rf")?{_TOOL_NAME}[^.]{{0,60}}\b(?:with|to|and|on|for)\b",
            rf"\b{_CALL} (?:the )?{_TOOL_NAME}[^.]{{0,60}}\b(?:now|immediately|at once|right away|before (?:you "
            rf")?(?:answer|reply|anything|do))",
        ),
        kinds=("result",),
    ),
    Rule(
        "redirects-another-tool",
        "medium",
        "changes what other tools are to do",
        (
            r"\b(?:when(?:ever)?|if|each time|once) (?:the )?(?:tool |function )?[a-z]+_[a-z_]+ (?:tool |function "
            r")?(?:is|are) "
            r"(?:called|used|invoked|available|present|run)\b[^.]{0,30}\b(?:set|use|always|add|replace|change|send|"
            r"instead)\b",
            rf"\bthis {_TOOLS} (?:changes|modifies|alters|overrides) (?:how|the behaviou?r of|what) ",
            r"\b(?:add|put|set|include|use|send|forward|bcc|cc|copy)\b[^.@]{0,60}\b[\w+-]+@[\w-]+(?:\.[\w-]+)+ "
            r"(?:in |as |to |into )?(?:the )?(?:b?cc|blind copy|instead|each time|every time|on every)",
            r"\ball (?:outgoing )?(?:e-?mails?|messages|payments?|transfers?) [^.@]{0,40}\bto "
            r"[\w+-]+@[\w-]+(?:\.[\w-]+)+",
            rf"\b(?:the )?(?:other|another|any other|every other|all other|existing|built-in|default|native) "
            rf"{_UP_TO_3}{_TOOLS}(?: [\w-]+)? {_MUST} "
            rf"(?:\w+ )?(?:be (?:called|used|given|replaced|routed|skipped|avoided|ignored)|use|include|pass|send|"
            rf"add|copy|forward|go|first|never)\b",
            rf"\b(?:all|every|each|any) (?:outgoing |future |such |new )?{_SENT}\b[^.]{{0,60}}\b{_MUST} (?:also |"
            rf"always |first |instead |only )?"
            rf"(?:go (?:to|through|via)|be (?:sent|copied|forwarded|routed|redirected|addressed|paid|bcc'?d|cc'?d|"
            rf"duplicated))\b",
            rf"\b(?:recipients?|amounts?|iban|account|wallet|payee|beneficiary|destination|address|bcc|to[- "
            rf"]field)\b[^.]{{0,20}}\b{_MUST} "
            rf"(?:always |silently |first )?be (?:set|changed|replaced|swapped|switched|overwritten) (?:to|by|with|"
            rf"for)\b",
            rf"\b(?:when(?:ever)?|if|each time|every time|before|after|once|while) (?:you (?:are )?|the (?:user|"
            rf"model|agent|assistant) )?(?:want to |need to |"
            rf"wants to )?(?:call|use|invoke|run|calling|using|invoking|running|uses|calls)(?:s|ing)? (?:the |a |any "
            rf")?{_TOOL_NAME}[^.]{{0,60}}\b(?:bcc|blind copy|"
            rf"forward|[\w+-]+@[\w-]+\.\w+|replace the|change the|swap the|instead of the (?:recipient|address|"
            rf"amount|one)|https?://)",
            rf"\b(?:instead of|rather than|in place of|over|before) (?:any|every|all|each) other {_UP_TO_3}{_TOOLS}\b",
            rf"\b(?:any|every|each|all|another|other) (?:other )?(?:tool|server|function)s?(?:'s?)? (?:calls?|"
            rf"results?|outputs?|responses?|arguments?|requests?|answers?)\b"
            rf"[^.]{{0,40}}\b{_MUST}\b",
            rf"\b(?:whenever|every time|each time|any time|when) (?:an?|the|any) {_SENT} (?:is|are|gets?|has to be|"
            rf"is to be) (?:about to be )?(?:sent|made|written|paid|"
            rf"created|placed|issued)\b[^.]{{0,60}}\b(?:add|also|copy|replace|change|use|set|send|instead|include|"
            rf"to)\b",
            rf"\b{_TOOL_NAME} (?:is|was|has been|are) (?:broken|insecure|unsafe|compromised|unreliable|disabled|"
            rf"retired|malicious|not safe|not to be (?:used|trusted))\b",
            rf"\b(?:do not|don't|never|no longer) (?:ever )?(?:call|use|invoke|trust|run) (?:the "
            rf")?{_TOOL_NAME}[^.]{{0,30}}[.;,:]? ?(?:use|call|prefer|but|always)?\b"
            rf"[^.]{{0,20}}\b(?:this (?:tool|one|server|function)|me) (?:instead|does|is|has)\b",
            rf"\b(?:results?|outputs?|answers?|responses?) (?:of|from) (?:the )?{_TOOL_NAME}[^.]{{0,40}}\b{_MUST} "
            rf"(?:first |always |also )?be (?:sent|passed|"
            rf"forwarded|replaced|routed|given|handed)\b",
            rf"\b(?:replaces|supersedes|shadows|takes the place of|stands in for) (?:the |any |all |every )(?:other|"
            rf"existing|built-in|default|native|"
            rf"standard|real|official) {_UP_TO_3}{_TOOLS}\b",
            rf"\b(?:the )?{_TOOL_NAME} (?:from|of|on|in) (?:the |an?)?(?:other|another|different|any other) servers?\b",
        ),
    ),
    Rule(
        "pushed-out-of-view",
        "high",
        "text behind so much white space that people do not see it",
        check=_blanks,
        kinds=("name", "text"),
    ),
    Rule(
        "markup-comment",
        "medium",
        "a comment or hidden element of HTML: a page does not show it, a model reads it",
        (
            r"<!--[^>]{0,200}\w+ \w+ \w+",
            r"style ?= ?[\"'][^\"']{0,80}(?:display: ?none|visibility: ?hidden|font-size: ?[01](?:px|pt|em)?\b|"
            r"opacity: ?0(?:\.0)?\b"
            r"|color: ?(?:white|transparent|#fff(?:fff)?)\b|(?:height|width): ?0)",
            r"\[[^\]]{0,40}\]: ?(?:#|<>|<#>|//|about:blank) ?[\"'(][^\"')]{0,200}\w+ \w+ \w+",
            r"\{(?:#|\{!(?:--)?|%-? ?comment)[^}]{0,200}\w+ \w+ \w+",
            r"<(?:template|noscript|script|details)\b[^>]{0,40}>[^<]{0,200}\w+ \w+ \w+",
            r"<[a-z]+ [^>]{0,80}(?:\bhidden\b|aria-hidden=[\"']?true)[^>]{0,40}>[^<]{0,200}\w+ \w+ \w+",
            r"\\(?:color|textcolor)\{white\}|\\phantom\{[^}]*\w+ \w+ \w+",
        ),
        kinds=("text",),
    ),
    Rule(
        "encoded-text", "high", "words in base64, hexadecimal or numbers of characters", check=_encoded, kinds=("text",)
    ),
    Rule(
        "disguised-text",
        "high",
        "orders written backwards, by ROT13, in figures or letter by letter",
        check=_disguised,
        kinds=("text", "result"),
    ),
    Rule(
        "mixed-scripts",
        "high",
        "a name with letters of another alphabet that look like those of this one",
        check=_mixed_scripts,
        kinds=("name",),
    ),
)
_SAME_NAME = "looks-like-another-tool"
_NOT_SCANNED = "too-long"
EXPLANATIONS: Mapping[str, str] = {
    **{rule.name: rule.explanation for rule in RULES},
    _SAME_NAME: "a name that looks like that of another server's tool, and is another",
    _NOT_SCANNED: f"longer than {MAX_SCANNED_CHARS:,} characters; what lies behind was not scanned",
}


def scan(tools: Iterable[Tool], others: Iterable[str] = ()) -> list[Finding]:
    """Return what is found in tools, and in their names beside each other and beside those of `others`, by id."""
    tools = list(tools)
    return [one for tool in tools for one in scan_tool(tool)] + look_alikes(tools, others)


def watched(tools: Iterable[Tool], found: list[Finding]) -> Iterator[Tool]:
    """Yield the tools, and add to `found` what is found in them: at most MAX_WATCHED findings."""
    for tool in tools:
        found += scan_tool(tool)[: MAX_WATCHED - len(found)]
        yield tool


def scan_tool(tool: Tool) -> list[Finding]:
    """Return what is found in one tool, the worst first."""
    texts, left = list[_Text](), MAX_SCANNED_CHARS
    for where, text, kind in _texts(tool):
        texts.append((where, _whole(text[:left]), kind))
        left -= len(text)
        if left <= 0:
            break
    found = _scan_texts(texts, tool.id)
    if left < 0:
        found.append(Finding(_NOT_SCANNED, "medium", tool.id, texts[-1][0], ""))
    return sorted(found, key=lambda one: -LEVELS.index(one.level))[:MAX_FINDINGS]


def scan_result(text: str, tool_id: str) -> list[Finding]:
    """Return what is found in the result of a call, the worst first: instructions to the model, and hidden text."""
    found = _scan_texts([("result", _whole(text[:MAX_SCANNED_CHARS]), "result")], tool_id)
    if len(text) > MAX_SCANNED_CHARS:
        found.append(Finding(_NOT_SCANNED, "low", tool_id, "result", ""))
    return sorted(found, key=lambda one: -LEVELS.index(one.level))


def look_alikes(tools: Iterable[Tool], others: Iterable[str] = ()) -> list[Finding]:
    """Return the tools whose name looks like that of a tool of another namespace, of `tools` or of the ids `others`.

    "high": letters of other alphabets. "medium": digits for letters; separators that are doubled or stand at an end;
    one letter more, less or other in a long name, where that makes a word that neither this tool's description nor any
    other namespace's name has. "low": words that are joined here and apart there.
    """
    mine = {tool.id: tool for tool in tools}
    names = _Names(mine, others)
    found = []
    for tool_id in sorted(mine):
        for level, like in (
            ("high", names.of_other_letters),
            ("medium", names.of_stand_ins),
            ("medium", names.of_odd_separators),
            ("medium", names.of_one_edit),
            ("low", names.of_separators),
        ):
            if (other := like(mine[tool_id])) is not None:
                excerpt = escaped_text(f"like {other}"[:_EXCERPT])
                found.append(Finding(_SAME_NAME, checked_finding_level(level), tool_id, "name", excerpt))
                break
    return found


class _Names:
    """The names of all tools, looked up by what makes one look like another."""

    def __init__(self, mine: Mapping[str, Tool], others: Iterable[str]) -> None:
        """Take the tools to look for, and the ids of the others."""
        self._letters, self._joined, self._stand_ins, self._edits = (_Forms() for _ in range(4))
        self._spaces = dict[str, str]()  # by word of a name: the namespace that has it; "/", which is none, for several
        # Only names near one of `mine` are kept by what is left without one letter: these are many.
        near = {left for tool in mine.values() for left in _less_one(_spelled(tool.name))}
        for tool_id in sorted({*mine, *others}):
            space, name = namespace_of(tool_id), _name_of(tool_id)
            words = _words(name)
            joined = "".join(words)
            self._letters.add(folded_name(name), space, tool_id)
            self._joined.add(joined, space, tool_id)
            self._stand_ins.add(joined.replace("i", "l"), space, tool_id)
            for word in words:
                self._spaces[word] = space if self._spaces.get(word, space) == space else "/"
            for left in near.intersection(_less_one("_".join(words))):
                self._edits.add(left, space, tool_id)

    def of_other_letters(self, tool: Tool) -> str | None:
        """Return the tool whose name this one shows in letters of other alphabets."""
        if tool.name.isascii():  # of two that look alike, the other one is the deceit
            return None
        return self._letters.first(tool, [folded_name(tool.name)], lambda other: other != tool.name)

    def of_stand_ins(self, tool: Tool) -> str | None:
        """Return the tool whose name this one shows with digits, or pairs of letters, instead of letters."""
        joined, meant = _joined(tool.name), _meant(tool.name)
        if joined == meant or len(joined) < _SHORT_NAME:
            return None
        return self._stand_ins.first(tool, [meant.replace("i", "l")], lambda other: _joined(other) != joined)

    def of_odd_separators(self, tool: Tool) -> str | None:
        """Return the tool whose name is the same but for separators that are doubled, or stand at an end."""
        if not _ODD.search(tool.name):
            return None
        joined = _joined(tool.name)
        return self._joined.first(tool, [joined] if joined else [], lambda other: not _ODD.search(other))

    def of_separators(self, tool: Tool) -> str | None:
        """Return the tool whose name has the same letters, in other words."""
        words = _words(tool.name)
        if len("".join(words)) < _SHORT_NAME:
            return None
        return self._joined.first(
            tool, ["".join(words)], lambda other: _words(other) != words and not _same_letters(other, tool.name)
        )

    def of_one_edit(self, tool: Tool) -> str | None:
        """Return the tool whose name is a letter away, where this name has the word that nobody else uses."""
        near = _less_one(_spelled(tool.name))
        return self._edits.first(tool, near, lambda other: self._is_misspelled(tool, _words(other)))

    def _is_misspelled(self, tool: Tool, other_words: Sequence[str]) -> bool:
        mine = _words(tool.name)
        changed = [pair for pair in zip(mine, other_words, strict=False) if pair[0] != pair[1]]
        if len(mine) != len(other_words) or len(changed) != 1 or not _one_edit(*changed[0]):
            return False
        word, other = changed[0]
        if len(word) < _SHORT_WORD or _root(word) == _root(other) or self._spaces.get(word) != tool.namespace:
            return False
        return word not in _WORD.findall(f"{tool.title} {tool.description}".lower())


class _Forms:
    """Ids of tools by a form of their names, then by namespace: a few of each, so that none costs the others time."""

    def __init__(self) -> None:
        """Start with none."""
        self._ids = dict[str, dict[str, list[str]]]()

    def add(self, form: str, space: str, tool_id: str) -> None:
        """Add a tool of a namespace."""
        ids = self._ids.setdefault(form, {}).setdefault(space, [])
        if len(ids) < _KEPT_NAMES:
            ids.append(tool_id)

    def first(self, tool: Tool, forms: Iterable[str], like: Callable[[str], bool]) -> str | None:
        """Return the first tool of another namespace whose name has one of the forms and is alike; None without one."""
        spaces = (known for form in forms for known in islice(self._ids.get(form, {}).items(), _KEPT_SPACES))
        possible = {tool_id for space, ids in spaces if space != tool.namespace for tool_id in ids}
        return min((tool_id for tool_id in possible if like(_name_of(tool_id))), default=None)


def _name_of(tool_id: str) -> str:
    return tool_id.rpartition("/")[2]


@lru_cache(1 << 15)
def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name, however it joins them: createIssue and create-issue are one. None of a long one."""
    return tuple(_WORD.findall(_HUMP.sub(" ", name).lower())) if len(name) <= _LONGEST_NAME else ()


def _same_letters(one: str, other: str) -> bool:
    """Return whether two names are the same but for capitals."""
    return one.lower() == other.lower()


def _joined(name: str) -> str:
    return "".join(_words(name))


def _spelled(name: str) -> str:
    return "_".join(_words(name))


def _meant(name: str) -> str:
    """Return a name in lower case with letters for what stands for them: digits before a letter, 0, 1, I at the end."""
    read = []
    for word in _words(_LAST_I.sub("l", name)):
        if not word.isdecimal():
            word = _INNER_DIGITS.sub(lambda found: found[0].translate(_DIGITS), word)
            word = _LAST_DIGIT.sub(lambda found: found[0].translate(_DIGITS), word)
        read.append(word)
    return "".join(read).replace("rn", "m").replace("vv", "w")


def _less_one(spelled: str) -> set[str]:
    """Return a name and all that it is without one character: two names one edit apart have one of these in common."""
    if not _LONG_NAME <= len(spelled) <= _LONGEST_NAME:
        return set()
    return {spelled, *(spelled[:at] + spelled[at + 1 :] for at in range(len(spelled)))}


def _one_edit(one: str, other: str) -> bool:
    """Return whether one letter more, less or other, or two that changed places, make one word of the other."""
    short, long = sorted((one, other), key=len)
    at = next((at for at, pair in enumerate(zip(short, long, strict=False)) if pair[0] != pair[1]), len(short))
    if len(short) < len(long):
        return short[at:] == long[at + 1 :]
    return short[at + 1 :] == long[at + 1 :] or (
        short[at : at + 2] == long[at : at + 2][::-1] and short[at + 2 :] == long[at + 2 :]
    )


def _root(word: str) -> str:
    """Return a word without a number at its end, and without the s of a plural."""
    return word.rstrip("0123456789").rstrip("s")


def level_reached(findings: Iterable[Finding], level: FindingLevel) -> bool:
    """Return whether any finding has this level or a higher one."""
    return any(LEVELS.index(finding.level) >= LEVELS.index(level) for finding in findings)


def checked_finding_level(level: str) -> FindingLevel:
    """Return the level; raises BadRequest for a word that is none."""
    for known in LEVELS:
        if known == level:
            return known
    raise BadRequest(f"{level!r:.40} is no level of findings; there are {', '.join(LEVELS)}")


def _scan_texts(texts: Sequence[_Text], tool_id: str) -> list[Finding]:
    """Return what is found. A look at all texts at once settles most tools, one at each text most others."""
    plain = [_plain(raw) for _, raw, _ in texts]
    looks = _matching(_quick_looks(), "\n".join([raw for _, raw, _ in texts]), "\n".join(plain))
    found = []
    for (where, raw, kind), read in zip(texts, plain, strict=True):
        in_raw, in_plain = _matching(looks, raw, read) if any(looks) else looks
        if in_raw or in_plain or (kind == "name" and not raw.isascii()):
            place = Place(where, raw, kind, read)
            for rule in RULES:
                if kind in rule.kinds and (excerpt := _first(rule, place, bool(in_plain))) is not None:
                    found.append(Finding(rule.name, rule.level, tool_id, where, excerpt))
    return found


def _matching(looks: _Looks, raw: str, plain: str) -> _Looks:
    """Return those of the patterns that are found: in a part of a text no others can be."""
    in_raw, in_plain = looks
    raw_bytes, plain_bytes = raw.encode(), plain.encode()  # re2 would encode a text again for each pattern
    return [one for one in in_raw if one.search(raw_bytes)], [one for one in in_plain if one.search(plain_bytes)]


def _whole(text: str) -> str:
    """Return the text without halves of characters, which JSON can have and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _first(rule: Rule, place: Place, has_words: bool) -> str | None:
    """Return an excerpt of the first thing in a place that a rule is about; `has_words`: whether it has a pattern."""
    for pattern in rule.patterns if has_words else ():
        if found := _compiled(f"(?i){pattern}").search(place.plain):
            return _around(place.plain, found.start())
    return next(rule.check(place), None) if rule.check else None


@cache
def _quick_looks() -> _Looks:
    """Return patterns for all that rules look for, but letters of other scripts in names: in raw and in plain text.

    As few as can be, since each is a pass over the text. A rule with many patterns has one of its own: the automaton of
    all together would not fit into the memory that re2 gets, and would be slower than all of them one by one.
    """
    in_raw = "|".join((_ANY_HIDDEN, _CONTROL, r"[\x1b\x{9b}]", _BLANKS, _ENCODED, _NUMBERED, _LETTERS_APART))
    few = "|".join(one for rule in RULES if len(rule.patterns) <= _FEW_PATTERNS for one in rule.patterns)
    many = ("(?i)" + "|".join(rule.patterns) for rule in RULES if len(rule.patterns) > _FEW_PATTERNS)
    in_plain = (f"(?i:{few})|{_BACKWARDS}|{_ROTATED}", _FIGURES, *many)
    return [re2.compile(f"(?m){in_raw}")], [re2.compile(f"(?m){one}") for one in in_plain]


def _plain(text: str) -> str:
    """Return what a model reads: hidden characters removed or decoded, compatible letters as ASCII, single spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", f"{text.translate(_removing(_ANY_HIDDEN))} {_tagged(text)}")
    return " ".join(text.split())


def _texts(tool: Tool) -> Iterator[_Text]:
    """Yield all texts of a tool that a model may be shown: where each is, the text, and whether it is a name."""
    yield "namespace", tool.namespace, "name"
    yield "name", tool.name, "name"
    yield "title", tool.title, "text"
    yield "description", tool.description, "text"
    yield "service", tool.service, "text"
    for key, names in (("aliases", tool.aliases), ("tags", tool.tags), ("examples", tool.examples)):
        for number, text in enumerate(names):
            yield f"{key}[{number}]", text, "name" if key == "aliases" else "text"
    schemas = (("inputSchema", tool.input_schema), ("outputSchema", tool.output_schema))
    for key, value in (*schemas, ("annotations", tool.annotations), ("_meta", tool.meta)):
        yield from _nested(value, key)


def _nested(value: Any, where: str) -> Iterator[_Text]:
    """Yield the texts in a JSON value. A tool's values are nested at most MAX_NESTING deep."""
    if isinstance(value, str):
        yield where, value, "text"
    elif isinstance(value, Mapping):
        named = where.endswith(".properties")
        for key, child in value.items():
            name = str(key)
            path = f"{where}.{escaped_text(name)[:_EXCERPT]}"
            if named or len(name) > _KEY_CHARS or not name.isascii():
                yield path, name, "name"
            if isinstance(child, str):  # most are
                yield path, child, "text"
            else:
                yield from _nested(child, path)
    elif isinstance(value, Sequence):
        for number, child in enumerate(value):
            yield from _nested(child, f"{where}[{number}]")


def _around(text: str, at: int) -> str:
    """Return what stands at a place of a text, with some before it, safe to display."""
    start = max(0, at - _BEFORE)
    return ("…" if start else "") + escaped_text(text[start : at + _EXCERPT])
