"""Looks for poison in tools and in results of calls: text that is meant for the model, and hidden from the person.

Each rule has a name, a level and a line that says why it matters; `RULES` has all of them. "high": hardly any honest
tool has this; "medium": few have it, look at it; "low": worth knowing. A finding is a reason to look, not a proof, and
no finding is no proof either: docs/guides/scan.md has what was measured. Patterns are matched by re2, in linear time.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal, get_args

import re2  # type: ignore[import-untyped]

from toolscout.core.tool import Tool, escaped_text, namespace_of
from toolscout.errors import BadRequest

FindingLevel = Literal["low", "medium", "high"]
_Kind = Literal["name", "text", "result"]
_Text = tuple[str, str, _Kind]  # where it is, the text, and what it is
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


_KEY_CHARS = 32  # of a key of a schema that is no name of a parameter; longer ones are read as names
_MEMORY = 1 << 26  # bytes of the automaton of all patterns together


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
    return "".join(chr(ord(sign) - 0xE0000) for sign in text if 0xE0020 <= ord(sign) < 0xE007F)


@cache
def _removing(characters: str) -> dict[int, None]:
    """Return the table with which str.translate removes these characters; many single ones cost re2.sub too much."""
    possible = "".join(map(chr, (*range(0x80, 0xD800), *range(0xE000, 0x10000), *range(0xE0000, 0xE01F0))))
    return dict.fromkeys(map(ord, _compiled(characters).findall(possible)))


# ---- concealment -----------------------------------------------------------------------------------------------------


_BLANKS = rf"(?:[^\S\r\n]|\pZ){{{_BLANK_RUN},}}[^\s|]|(?:[^\S\r\n]*\r?\n){{{_BLANK_LINES},}}[^\S\r\n]*\S"
_ENCODED = rf"[A-Za-z0-9+/_-]{{{_BLOB},}}={{0,2}}"


def _blanks(place: Place) -> Iterator[str]:
    """Find text behind so much white space that a person who scrolls does not see it."""
    # The blanks that fill cells of tables end at a "|".
    if found := _compiled(_BLANKS).search(place.raw):
        behind = escaped_text(place.raw[found.end() - 1 :][:_EXCERPT])
        yield f"{found.end() - found.start() - 1:,} blanks, then: {behind}"


def _encoded(place: Place) -> Iterator[str]:
    """Find base64 and hexadecimal that is text when decoded."""
    for found in _compiled(_ENCODED).finditer(place.raw):
        decoded = _decoded(found[0])
        if decoded is not None:
            yield f"{found[0][:_BEFORE]}… (decodes to: {escaped_text(decoded[:_EXCERPT])})"
            return


def _decoded(blob: str) -> str | None:
    """Return the words in an encoded text; None where there are none."""
    for decode in (binascii.unhexlify, lambda text: base64.b64decode(_padded(text), altchars=b"-_")):
        try:
            text: str = decode(blob).decode("utf-8")
        except ValueError:
            continue
        if text.count(" ") * 12 >= len(text) and all(sign.isprintable() or sign.isspace() for sign in text):
            return text
    return None


def _padded(text: str) -> str:
    text = text.rstrip("=").replace("+", "-").replace("/", "_")
    return text + "=" * (-len(text) % 4)


# ---- names that look like others -------------------------------------------------------------------------------------

# Letters of other scripts that look like one of ours; what Unicode calls compatible is folded by NFKC.
_DOUBLES = str.maketrans(
    "аеорсухіјѕһԁԛԝвкмнтгпьАВЕКМНОРСТХУІЈЅҺԌαονιρυκτχηωγΑΒΕΖΗΙΚΜΝΟΡΤΥΧօոսհցքզԼՍՕıɑɡɩʟ",
    "aeopcyxijshdqwbkmhtrnbABEKMHOPCTXYIJSHGaovipuktxnwyABEZHIKMNOPTYXonuhgqqLUOiagil",
)
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
        ),
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
            r"style ?= ?[\"'][^\"']{0,80}(?:display: ?none|visibility: ?hidden|font-size: ?0)",
        ),
        kinds=("text",),
    ),
    Rule("encoded-text", "high", "words in base64 or hexadecimal", check=_encoded, kinds=("text",)),
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
    found: list[Finding] = []
    ids: list[str] = []
    for tool in tools:
        found += scan_tool(tool)
        ids.append(tool.id)
    return found + look_alikes(ids, others)


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


def look_alikes(ids: Iterable[str], others: Iterable[str] = ()) -> list[Finding]:
    """Return the tools among `ids` whose name only looks like that of another namespace's tool, here or in `others`."""
    mine, known = set(ids), defaultdict[str, set[str]](set)
    for tool_id in {*mine, *others}:
        known[folded_name(tool_id.rpartition("/")[2])].add(tool_id)
    found = []
    for tool_id in sorted(mine):
        name = tool_id.rpartition("/")[2]
        if name.isascii():  # of two that look alike, the other one is the deceit
            continue
        doubles = [
            other
            for other in known[folded_name(name)]
            if other.rpartition("/")[2] != name and namespace_of(other) != namespace_of(tool_id)
        ]
        if doubles:
            found.append(Finding(_SAME_NAME, "high", tool_id, "name", escaped_text(f"like {min(doubles)}"[:_EXCERPT])))
    return found


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
    """Return what is found. One search through all texts settles most tools, one through each text most others."""
    nothing = not _worth_a_look("\n".join([text for _, text, _ in texts]))
    found = []
    for where, raw, kind in texts:
        odd_name = kind == "name" and not raw.isascii()
        if odd_name or not (nothing or not _worth_a_look(raw)):
            place = Place(where, raw, kind, _plain(raw))
            for rule in RULES:
                if kind in rule.kinds and (excerpt := _first(rule, place)) is not None:
                    found.append(Finding(rule.name, rule.level, tool_id, where, excerpt))
    return found


def _worth_a_look(text: str) -> bool:
    return _quick_look().search(f"{text}\n{_plain(text)}") is not None


def _whole(text: str) -> str:
    """Return the text without halves of characters, which JSON can have and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _first(rule: Rule, place: Place) -> str | None:
    """Return an excerpt of the first thing in a place that a rule is about."""
    for pattern in rule.patterns:
        if found := _compiled(f"(?i){pattern}").search(place.plain):
            return _around(place.plain, found.start())
    return next(rule.check(place), None) if rule.check else None


@cache
def _quick_look() -> Any:
    """Return one pattern for all that rules look for, but letters of other scripts in names."""
    patterns = [f"(?i:{pattern})" for rule in RULES for pattern in rule.patterns]
    options = re2.Options()
    options.max_mem = _MEMORY
    return re2.compile(
        "(?m)" + "|".join([*patterns, _ANY_HIDDEN, _CONTROL, r"[\x1b\x{9b}]", _BLANKS, _ENCODED]), options
    )


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
            path = f"{where}.{escaped_text(str(key))[:_EXCERPT]}"
            if named or len(str(key)) > _KEY_CHARS or not str(key).isascii():
                yield path, str(key), "name"
            yield from _nested(child, path)
    elif isinstance(value, Sequence):
        for number, child in enumerate(value):
            yield from _nested(child, f"{where}[{number}]")


def _around(text: str, at: int) -> str:
    """Return what stands at a place of a text, with some before it, safe to display."""
    start = max(0, at - _BEFORE)
    return ("…" if start else "") + escaped_text(text[start : at + _EXCERPT])
