"""Expansions by rules, without a model: a tool's name and parameters in words that users say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolscout.core.expansion import Expansion
from toolscout.core.tool import Tool, clean_text, split_words

_PARAMETERS = 8
_PARAMETER_WORDS = 4

# What users say for the verbs of names. The first word of a line is the verb that names use.
_SAID = """
get: show, find, look up, check, tell me, what is
list: show all, which, what are, browse
search: find, look for, look up
create: make, add, new, set up, start
add: put, include, insert, new
update: change, edit, modify, correct
set: change, choose, turn
delete: remove, erase, get rid of, throw away
cancel: call off, stop, undo
send: write, deliver, tell, mail
reply: answer, respond, write back
share: give access, send to, invite
invite: ask to join, add people
upload: put, store, save
download: save, fetch, get a copy
convert: turn into, change into, how much is
translate: say in another language, how do you say
calculate: work out, how much, how many, compute
book: reserve, order, get a seat
reserve: book, keep free
order: buy, get
buy: purchase, order, get
pay: settle, transfer money
transfer: send money, move
schedule: plan, arrange, set a time, put in the calendar
remind: tell me later, do not let me forget
play: listen to, put on, watch
pause: stop for now, hold
start: begin, run, launch, turn on
stop: end, turn off, halt, kill
open: start, show, launch
close: end, finish, shut
lock: secure, shut
move: put into, shift
copy: duplicate, clone
rename: give another name
merge: combine, join, put together
split: divide, cut
run: execute, start, do
check: see whether, verify, look at, is it
validate: check, verify, is it right
verify: check, confirm
track: follow, where is, status
monitor: watch, keep an eye on
compare: which is better, difference between
recommend: suggest, what should i, ideas
generate: make, write, create
summarize: sum up, short version, gist
analyze: look into, examine, study
detect: find, recognise, spot
extract: pull out, take out, get
export: save as, download, get out
import: load, bring in
filter: narrow down, only those
sort: put in order, rank
assign: give to, make responsible
approve: accept, say yes, confirm
reject: refuse, decline, say no
subscribe: follow, sign up
unsubscribe: stop getting, opt out
register: sign up, enrol
login: sign in, log on
publish: post, put online, release
post: write, publish, put up
comment: say, note, remark
review: look over, rate, opinion
rate: give stars, review
archive: put away, file
restore: bring back, recover, undo
backup: save a copy, keep safe
enable: turn on, switch on
disable: turn off, switch off
call: ring, phone
predict: forecast, expect
query: ask, look up, find
fetch: get, load, show
read: show, open, look at
write: save, put down
query: look up, find, check
modify: change, edit
reset: set back, start again
navigate: directions, way to, route
"""
# Other forms of these verbs in names and in the first word of descriptions.
_SAME = """
get: retrieve obtain return give provide receive show display
search: find lookup
create: make new insert
update: edit change alter patch put
delete: remove erase destroy drop purge
list: enumerate browse
run: execute invoke trigger
calculate: compute estimate count
analyze: analyse
summarize: summarise
buy: purchase
cancel: revoke
check: inspect
query: inquire enquire
"""
_SPELLED_OUT = {
    "acct": "account", "addr": "address", "admin": "administrator", "amt": "amount", "app": "application",
    "auth": "sign in", "avg": "average", "bal": "balance", "cal": "calendar", "cat": "category", "cfg": "settings",
    "cmd": "command", "config": "settings", "conv": "conversation", "ctry": "country", "curr": "currency",
    "cust": "customer", "db": "database", "del": "delete", "dept": "department", "desc": "description",
    "dest": "destination", "dev": "developer", "dir": "folder", "dist": "distance", "doc": "document",
    "docs": "documents", "dst": "destination", "env": "environment", "exp": "expiry", "faq": "questions and answers",
    "fav": "favourite", "freq": "frequency", "geo": "place", "img": "picture", "info": "information", "inv": "invoice",
    "lang": "language", "lat": "latitude", "lib": "library", "lng": "longitude", "loc": "location", "lon": "longitude",
    "max": "most", "mgr": "manager", "min": "least", "msg": "message", "msgs": "messages", "num": "number",
    "org": "organisation", "param": "parameter", "perm": "permission", "pic": "picture", "pkg": "package",
    "pos": "position", "pr": "pull request", "pref": "preference", "prod": "product", "proj": "project",
    "pwd": "password", "qty": "quantity", "ref": "reference", "reg": "register", "repo": "repository",
    "repos": "repositories", "req": "request", "res": "result", "sched": "schedule", "sms": "text message",
    "spec": "specification", "src": "source", "stat": "statistics", "stats": "statistics", "sub": "subscription",
    "temp": "temperature", "ts": "time", "txn": "transaction", "tz": "time zone", "usr": "user", "util": "utility",
    "val": "value", "vid": "video", "vol": "volume",
}  # fmt: skip
# Parameters that say how an answer is given, not what is asked.
_TECHNICAL = frozenset(
    """id ids limit offset page size token cursor format key api callback fields sort order per count verbose version
    start end type mode options option debug timeout locale include max min number""".split()
)
_MOMENTS = frozenset("date day time month year week hour deadline datetime".split())
_PLACES = frozenset("city country location place address region state town destination origin".split())
_READS = frozenset("get list search query fetch read check track monitor compare calculate convert predict".split())
_ENDS = frozenset("delete cancel stop close reject disable unsubscribe archive".split())


def _table(text: str, mark: str | None) -> dict[str, list[str]]:
    pairs = (line.partition(":")[::2] for line in text.strip().splitlines())
    return {key: [word.strip() for word in words.split(mark) if word.strip()] for key, words in pairs}


_SYNONYMS = _table(_SAID, ",")
_VERBS = {verb: verb for verb in _SYNONYMS} | {
    other: verb for verb, others in _table(_SAME, None).items() for other in others
}


def expand(tool: Tool) -> Expansion:
    """Return the expansion of a tool by its name, the first word of its description, and its parameters.

    Without a known verb there is no purpose, and without a parameter that says anything new no "when"; both may be
    empty. Words that the document has already would only count twice, which was worse on dev.
    """
    words = spelled_out(split_words(tool.name))
    verb = next((found for word in words if (found := _verb(word))), "")
    thing = " ".join(word for word in words if not _verb(word))
    if not verb:
        first = split_words(clean_text(tool.description[:200]))[:1]
        verb = _verb(first[0]) if first else ""
    said = _SYNONYMS.get(verb, [])
    purpose = f"{', '.join(said)} {thing}".strip() if said else ""
    spelled = thing if not said and words != [word.lower() for word in split_words(tool.name)] else ""
    known = frozenset(word.lower() for word in split_words(tool.document()))
    asked = [phrase for phrase in _phrases(tool.input_schema) if set(phrase.split()) - known - {"in", "a", "for", "by"}]
    when = f"{thing} {', '.join(asked)}".strip() if asked else ""
    return Expansion(purpose or spelled, when, _limits(verb), tool.digest())


def spelled_out(words: Sequence[str]) -> list[str]:
    """Return words in lower case, with abbreviations spelled out."""
    return " ".join(_SPELLED_OUT.get(word.lower(), word.lower()) for word in words).split()


def _verb(word: str) -> str:
    """Return the verb that a word is a form of; "" where it is none that is known."""
    word = word.lower()
    forms = [word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ing"), word.removesuffix("ed")]
    forms += [f"{word.removesuffix('ing')}e", word.removesuffix("d"), f"{word.removesuffix('ies')}y"]
    return next((_VERBS[form] for form in forms if form in _VERBS), "")


def _phrases(schema: Mapping[str, object]) -> list[str]:
    """Return what can be asked for by parameters, as phrases: "in a city", "for a date", "by author"."""
    properties = schema.get("properties")
    found: list[str] = []
    for name in list(properties)[:_PARAMETERS] if isinstance(properties, Mapping) else ():
        words = spelled_out(split_words(str(name)))[:_PARAMETER_WORDS]
        words = [word for word in words if word not in _TECHNICAL and not word.isdigit() and len(word) > 1]
        if words:
            sign = "for a" if words[-1] in _MOMENTS else "in a" if words[-1] in _PLACES else "by"
            found.append(f"{sign} {' '.join(words)}")
    return list(dict.fromkeys(found))


def _limits(verb: str) -> str:
    if verb in _READS:
        return "does not create, change or delete anything"
    return "does not make anything new" if verb in _ENDS else "does not look things up" if verb else ""
