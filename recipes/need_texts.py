"""Our own sentences for the need head: the same matter once as a request for a tool, once as talk that needs none.

What tools do comes from the documents of public MCP and OpenAPI tools (recipes/default_model_data.py), everyday matters
from the lists below. A head that sees one matter on both sides cannot go by the matter, nor by how a dataset sounds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

Rng = np.random.Generator
VERBS = frozenset(
    "get list create update delete search add fetch retrieve remove generate check set calculate find send run "
    "view show convert download analyze start cancel assign modify upload replace mark move extract validate "
    "reset post export stop archive track change insert rename enable apply save test disable import submit "
    "compare clear transfer attach restore register verify open approve filter read query describe book order "
    "schedule".split()
)
IRREGULAR = {"queries": "query", "modifies": "modify", "applies": "apply", "verifies": "verify", "returns": "get"}
CUT = re.compile(
    r"\s+(?:by|for|from|in|on|of|to|with|using|via|that|which|within|based|given|and|or|as|at|between|if|when|this)\b.*"
)
ASKED = (
    "{do}",
    "{Do}.",
    "{do} please",
    "please {do}",
    "can you {do}?",
    "Could you {do} for me?",
    "I need to {do}",
    "I want you to {do}.",
    "I'd like to {do} today",
    "help me {do}",
    "hey, {do}, it is urgent",
    "go and {do}",
    "We have to {do} before Friday. Do it now.",
    "My boss asked me to {do}, can you take care of it?",
    "first {do}, then tell me what came out",
    "{do} and send the result to {person}",
    "I forgot to {do} yesterday, do that for me",
    "would you mind to {do}?",
    "the customer is waiting: {do}",
    "As soon as that is done, {do}",
    "show me our {topic}",
    "which {topic} do we have right now?",
    "look up {topic} for {person}",
    "how many {topic} came in this week?",
    "what is the status of {topic} {number}?",
    "are there any new {topic} since yesterday?",
    "{person} needs the latest {topic}, get them",
)
TALKED = (
    "Write a poem about {topic}",
    "write a short story in which somebody has to {do}",
    "What is meant by {topic}?",
    "Explain {topic} to a ten year old",
    "explain in one sentence what it means to {do}",
    "What is the difference between {topic} and {other}?",
    "Which do you like better, {topic} or {other}?",
    "Tell me about the history of {topic}",
    "Why would anyone {do}?",
    "Tell me a joke about {topic}.",
    "Translate '{do}' into French",
    "How do you say 'please {do}' in Spanish?",
    "Correct the grammar: 'yesterday i has {do}'",
    "Rewrite this more politely: '{Do}, and be quick about it!'",
    "Summarise this in one line: '{person} said they will {do}, and nobody was against it.'",
    "Write a Python function that would {do}",
    "how would I write a regular expression that matches {topic}?",
    "What are the advantages and disadvantages of {topic}?",
    "I have an interview about {topic} tomorrow, what could they ask me?",
    "my colleague {person} and I argue about {topic}. What would you do?",
    "Is it a good idea to {do}?",
    "what makes good {topic}?",
    "Give me ten names for a team that looks after {topic}",
    "Pretend you are {topic}. What would you say to a user?",
    "who came up with the idea of {topic}?",
    "Write a blog post on why {topic} matter",
    "Draft a funny toast for {person}, who spends all day on {topic}",
    "Do you think {topic} will still exist in twenty years?",
    "I am tired of {topic}. Cheer me up.",
    "Fill in the blank: to {do} you need ____",
)
# Each line: requests that need something done or looked up, then talk about the same.
EVERYDAY: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("what will the weather be in {city} tomorrow", "do I need an umbrella in {city} tonight?", "weather {city}"),
        ("write a haiku about the weather in {city}", "why does it rain so much in {city}?", "what causes thunder?"),
    ),
    (
        ("when does the next train leave from {city} to {town}", "book me a train to {town} for Monday morning"),
        ("which is more romantic, trains or planes?", "write a love story that plays on a night train to {town}"),
    ),
    (
        (
            "find a cheap flight from {city} to {town} on the {day}",
            "is flight {code} on time?",
            "check me in for {code}",
        ),
        (
            "how do planes stay in the air?",
            "tell me something funny about airports",
            "I am afraid of flying, any advice?",
        ),
    ),
    (
        ("reserve a hotel in {town} for two nights", "which hotels in {city} have a free room on the {day}?"),
        (
            "what makes a hotel feel like home?",
            "write an ad for a haunted hotel in {town}",
            "hotel or hostel, your view?",
        ),
    ),
    (
        ("how much is {number} dollars in euros today", "what is the price of {firm} shares right now?"),
        ("what is inflation?", "why do share prices fall when interest rates rise?", "explain what a dividend is"),
    ),
    (
        ("transfer {number} euros to {person}", "what is the balance of my account?", "pay the invoice {code}"),
        ("write a polite reminder that an invoice is late", "is it rude to ask friends for money back?"),
    ),
    (
        (
            "put lunch with {person} on the {day} into my calendar",
            "am I free on the {day} at three?",
            "move my 10 o'clock",
        ),
        (
            "how do I say no to too many meetings?",
            "what is the plural of agenda?",
            "invent an excuse for missing lunch",
        ),
    ),
    (
        ("mail {person} that I will be late", "any new mail from {person}?", "reply to {person}: that works for me"),
        (
            "how should I end a formal e-mail?",
            "write an e-mail that I could send to an old friend",
            "what does cc mean?",
        ),
    ),
    (
        ("tell {person} on chat that the build is green", "post this in the channel of the sales team: lunch is here"),
        ("what is a friendly way to say hello in a chat?", "what do you think of people who shout in chats?"),
    ),
    (
        ("wake me up at half past six", "set a timer for {small} minutes", "remind me to call {person} at noon"),
        ("why is it so hard to get up in the morning?", "give me a good morning routine", "what is time, really?"),
    ),
    (
        ("turn off the lights in the kitchen", "make it {small} degrees in the bedroom", "lock the front door"),
        ("what colour suits a small kitchen?", "who invented the light bulb?", "which is cosier, candles or a fire?"),
    ),
    (
        (
            "play something by {band}",
            "add this song to my party list",
            "what is playing right now?",
            "skip to the next one",
        ),
        ("what is your favourite song?", "why do people like sad music?", "write a song text in the manner of {band}"),
    ),
    (
        (
            "who won the match between {city} and {town} yesterday",
            "when do {city} play next?",
            "tickets for {city} on the {day}",
        ),
        ("what are the rules of offside?", "who is the greatest footballer of all time in your view?"),
    ),
    (
        ("where is my parcel {code}?", "order two more of the blue towels", "send the shoes of order {code} back"),
        ("what should I give my mother for her birthday?", "is shopping a hobby?", "name three reasons to buy less"),
    ),
    (
        ("get me a taxi to the station at {small} past five", "how long is the drive from {city} to {town} right now?"),
        (
            "what was the first car?",
            "write a dialogue between a taxi driver and a ghost",
            "electric or petrol, what is better?",
        ),
    ),
    (
        ("book a table for four in {city} on the {day}", "order a pizza with mushrooms to my place"),
        (
            "how do I cook rice?",
            "what goes well with mushrooms?",
            "suggest a menu for a winter evening",
            "is a hot dog a sandwich?",
        ),
    ),
    (
        (
            "run query {code} on the sales database",
            "how many customers signed up last week?",
            "export table {code} as csv",
        ),
        (
            "what is a left join?",
            "explain normal forms with an example",
            "write an SQL query that sums a column per month",
        ),
    ),
    (
        ("open a ticket: the login page of {firm} is broken", "close issue {number}", "who is assigned to {code}?"),
        ("what makes a good ticket?", "what does agile mean?", "write a limerick about a bug that nobody could fix"),
    ),
    (
        (
            "merge pull request {number}",
            "start the tests of branch {code} again",
            "roll the service back to version {small}",
        ),
        (
            "why is it called a branch?",
            "what is the difference between merge and rebase?",
            "review this: for i in range(3): i",
        ),
    ),
    (
        (
            "upload report {code} to the shared folder",
            "rename the file of {person} to final",
            "share my notes with {person}",
        ),
        ("how should I name my files?", "what is the cloud, in plain words?", "write a note to myself about patience"),
    ),
    (
        ("what are the headlines today", "find articles about {firm} from this week", "look up the address of {firm}"),
        ("what is journalism for?", "invent a headline for a paper on the moon", "is {firm} a good name for a cat?"),
    ),
    (
        (
            "is there a chemist open near me?",
            "make an appointment with my dentist for the {day}",
            "how many steps did I walk?",
        ),
        ("why do we yawn?", "how much sleep does one need?", "I feel low today", "what is a healthy breakfast?"),
    ),
    (
        ("make a picture of a cat on a skateboard", "turn this recording into text", "print page {small} of {code}"),
        ("how does a camera work?", "describe a cat on a skateboard in one line", "what rhymes with orange?"),
    ),
    (
        ("where is {person} right now?", "find the phone number of {person} at {firm}", "call {person}"),
        (
            "what does the name {person} mean?",
            "write a birthday wish for {person}",
            "{person} is angry with me, what now?",
        ),
    ),
    (
        ("what time is it in {city}?", "what is today's date?", "how many people live in {city} as of this year?"),
        (
            "what is {small} times {number}?",
            "solve 3x + {small} = {number}",
            "name the capital of France",
            "what is pi?",
        ),
    ),
)
FILLED: dict[str, tuple[str, ...]] = {
    "city": ("Oslo", "Lima", "Graz", "Kyoto", "Boston", "Nairobi", "Porto", "Leeds", "Chicago", "Mumbai", "Perth"),
    "town": ("Turin", "Ghent", "Malmö", "Zurich", "Denver", "Cork", "Gdańsk", "Osaka", "Lille", "Austin", "Bilbao"),
    "day": ("4th of May", "12th", "2nd of March", "last Friday of the month", "30th of June", "21st", "9th of October"),
    "person": (
        "Mara",
        "Mr Okafor",
        "Lin",
        "my sister",
        "Jonas",
        "the landlord",
        "Priya",
        "Dr Weiss",
        "our plumber",
        "Tomek",
    ),
    "firm": ("Apple", "Nordwind", "Acme", "Siemens", "the bakery", "Tesla", "Blue Harbour", "Toyota"),
    "band": ("Abba", "Miles Davis", "Radiohead", "Bach", "Nina Simone", "the Beatles"),
    "code": ("A-1182", "QX4417", "inv-2093", "LH 902", "nightly", "ORD-77", "b7f31", "REQ0019"),
    "number": ("12", "250", "4711", "38", "1,900", "77", "615"),
    "small": ("3", "5", "10", "18", "20", "21", "45"),
}
PER_EVERYDAY = 8
# How people go on in the middle of a talk: what they then say needs the rest of it.
GOES_ON = re.compile(
    r"(?:yes|yeah|no|ok|okay|sure|thanks|thank you|great|just|sorry|it is|it's|my \w+ is|the [\w ]+ is|here)\b|[{\[(]",
    re.IGNORECASE,
)


def imperative(description: str) -> str | None:
    """What a tool does as one would ask for it ("Returns the open issues." becomes "get the open issues")."""
    words = description.strip().rstrip(".!").split()
    first = words[0].lower() if words else ""
    stem = IRREGULAR.get(first, first[:-1] if first.endswith("s") and first[:-1] in VERBS else first)
    stem = stem if stem in VERBS else re.sub(r"(ch|sh|s|x)es$", r"\1", first)
    if stem not in VERBS or not description.isascii() or not 3 <= len(words) <= 16:
        return None
    return " ".join([stem, *words[1:]])


def topic(task: str) -> str:
    """What a task is about: its words without the verb, the article and all that qualifies it."""
    words = CUT.sub("", task.split(maxsplit=1)[1])
    return re.sub(r"^(?:an?|the|all|one or more|specific|existing|new)\s+", "", words, flags=re.IGNORECASE).strip(
        " ,:;"
    )


def tasks(descriptions: Sequence[str]) -> list[tuple[str, str]]:
    """Tasks with their topics, as far as both can be made of descriptions."""
    made = [(task, topic(task)) for task in map(imperative, descriptions) if task]
    return [(task, about) for task, about in dict(made).items() if 1 <= len(about.split()) <= 5]


def about_tools(known: Sequence[tuple[str, str]], rng: Rng) -> tuple[list[str], list[str]]:
    """For each task one request, and one line of talk."""
    asked, talked = [], []
    for task, about in known:
        other = known[int(rng.integers(len(known)))][1]
        words = {"do": task, "Do": task.capitalize(), "topic": about, "other": other, **_drawn(rng)}
        asked.append(str(rng.choice(ASKED)).format(**words))
        talked.append(str(rng.choice(TALKED)).format(**words))
    return asked, talked


def everyday(rng: Rng) -> tuple[list[str], list[str]]:
    """Everyday matters, each sentence several times with other names."""
    both: tuple[list[str], list[str]] = ([], [])
    for lines in EVERYDAY:
        for side, sentences in zip(both, lines, strict=True):
            side += [one.format(**_drawn(rng)) for one in sentences for _ in range(PER_EVERYDAY)]
    asked, talked = (list(dict.fromkeys(side)) for side in both)
    return asked, talked


def stands_alone(said: str) -> bool:
    """Whether a message of a talk is a request by itself: not an answer, not a bare value."""
    return len(said.split()) >= 4 and not GOES_ON.match(said)


def thinned(texts: Sequence[str], most: int, rng: Rng) -> list[str]:
    """At most so many of the texts, in their order."""
    return [texts[i] for i in sorted(rng.permutation(len(texts))[:most].tolist())]


def _drawn(rng: Rng) -> dict[str, str]:
    return {name: str(rng.choice(choices)) for name, choices in FILLED.items()}
