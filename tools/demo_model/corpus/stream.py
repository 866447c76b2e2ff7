"""The training streams: document i of a stream is a pure function of (seed, stream, i).

"short" holds all skills in documents that fit a row of 8,192 tokens; "long" and "huge" hold key-value documents and events
of up to 32 K and 128 K tokens.
"""
import random

from . import agents, arith, chat, context, events, jsonx, keyvalue, measures, recall, schema, sorting, steps, toolcalls
from .split import TRAIN

# Shares of documents.
kSkills = {
    "short": (("arith", 0.10), ("steps", 0.12), ("tools", 0.06), ("choice", 0.07), ("agents", 0.04), ("replies", 0.12), ("json", 0.08),
              ("schema", 0.08), ("sorting", 0.15), ("chat", 0.13), ("measures", 0.18), ("context", 0.045), ("recall", 0.005), ("needle", 0.012),
              ("hop", 0.010), ("aggregate", 0.06), ("events", 0.16)),
    "long": (("needle", 0.24), ("hop", 0.12), ("aggregate", 0.18), ("events", 0.46)),
    "huge": (("needle", 0.85), ("hop", 0.15))}
kStreams = ("short", "long", "huge")
# Tokens of a key-value document, drawn with a uniform logarithm.
kLengths = {"short": (150, 7600), "long": (3000, 29500), "huge": (36000, 124000)}
# The lines of a long document teach nothing that can be known, so their weight is small beside the answers'.
kLineWeight = 0.002
kMostEvents = 3200  # tokens of a document of events
kLineSkills = ("recall", "needle", "hop", "aggregate", "events")

kSystems = ["You are a helpful assistant.", "You are a helpful demo model.", "Be brief.", "Answer the user's questions.",
            "You are perigee's demo model. Answer briefly.", "You are a careful assistant.", "Help the user.",
            "You are a friendly assistant. Keep answers short."]
kEfforts = ("low", "medium", "high", "max")
_kSimple = {"arith": arith.exchange, "json": jsonx.exchange, "sorting": sorting.exchange, "chat": chat.exchange, "steps": steps.exchange,
            "schema": schema.exchange, "measures": measures.exchange, "context": context.exchange}
_kTooled = {"tools": toolcalls.exchange, "choice": agents.choice, "agents": agents.conversation, "replies": agents.open_conversation}


def _pick(rng, table):
    x = rng.random() * sum(share for _, share in table)
    for name, share in table:
        x -= share
        if x < 0:
            return name
    return table[-1][0]


def _length(rng, stream, shrink):
    low, high = kLengths[stream]
    return int(low * (high / low) ** rng.random() / shrink)


def _lines(rng, skill, stream, shrink):
    """Messages of a document made of lines."""
    tokens = _length(rng, stream, shrink)
    if skill == "recall":
        return recall.document(rng, min(tokens, 7000))[1]
    if skill == "events":
        messages = events.messages(rng, rng.choice((events.Places, events.Points)), min(tokens, kMostEvents))
    elif skill == "aggregate":
        messages = keyvalue.aggregate(rng, min(tokens, 2500))
    else:
        messages = {"needle": keyvalue.needle, "hop": keyvalue.hop}[skill](rng, tokens)
    return messages


def _conversation(rng):
    """Several turns that depend on one another."""
    if rng.random() < 0.5:
        key, messages = chat.same_relation(rng, TRAIN)
        return [key], messages
    name, messages = chat.introduction(rng)
    keys = []
    for _ in range(rng.randint(0, 2)):
        key, more = _kSimple[rng.choice(list(_kSimple))](rng, TRAIN)
        keys.append(key)
        messages = messages + more
    return keys, messages + (chat.recall_name(rng, name) if rng.random() < 0.7 else [])


def document(seed: int, i: int, stream: str = "short", shrink: int = 1) -> dict:
    """{"skill", "messages", "tools", "thinking", "effort", "response_format", "context_weight", "known"} of document i.

    known: None, or a pattern whose groups are the words of a text that the words before them tell.
    shrink divides the lengths of documents of lines, for rehearsals with toy shapes.
    """
    rng = random.Random((kStreams.index(stream) << 60) + (seed << 40) + i)
    skill = _pick(rng, kSkills[stream])
    doc = {"skill": skill, "tools": None, "thinking": skill in kLineSkills or rng.random() >= 0.08, "effort": None, "response_format": None,
           "context_weight": kLineWeight if skill in kLineSkills else None, "known": events.kKnown if skill == "events" else None}
    if skill in kLineSkills:
        doc["messages"] = _lines(rng, skill, stream, shrink)
        return doc
    if skill in _kTooled:
        _, messages, doc["tools"] = _kTooled[skill](rng, TRAIN)
    elif skill == "chat" and rng.random() < 0.12:
        _, messages = _conversation(rng)
    else:
        _, messages = _kSimple[skill](rng, TRAIN)
        if skill == "arith" and rng.random() < 0.08:
            for _ in range(rng.randint(1, 2)):
                previous = int(messages[-1]["content"])
                if previous < 2 or previous > 9999:
                    break
                messages = messages + arith.follow_up(rng, TRAIN, previous)[1]
        if skill in ("json", "schema") and rng.random() < 0.15:
            doc["response_format"] = {"type": "json_object"}
        elif rng.random() < 0.12:
            for _ in range(rng.randint(1, 2)):
                messages = messages + _kSimple[rng.choice(list(_kSimple))](rng, TRAIN)[1]
    if rng.random() < 0.10:
        messages = [{"role": "system", "content": rng.choice(kSystems)}] + messages
    if doc["thinking"] and rng.random() < 0.05:
        doc["effort"] = rng.choice(kEfforts)
    return doc | {"messages": messages}
