"""The training stream: document i is a pure function of (seed, i), in one fixed mixture."""
import random

from . import arith, chat, jsonx, recall, sorting, toolcalls
from .split import TRAIN

# Shares of documents. The few recall documents are long, so they hold about a fifth of the tokens.
kMixture = (("arith", 0.31), ("tools", 0.17), ("json", 0.20), ("sorting", 0.12), ("chat", 0.19), ("recall", 0.010))

kSystems = ["You are a helpful assistant.", "You are a helpful demo model.", "Be brief.", "Answer the user's questions.",
            "You are perigee's demo model. Answer briefly.", "You are a careful assistant.", "Help the user.",
            "You are a friendly assistant. Keep answers short."]
kEfforts = ("low", "medium", "high", "max")
_kSimple = {"arith": arith.exchange, "json": jsonx.exchange, "sorting": sorting.exchange, "chat": chat.exchange}


def _pick(rng, table):
    x = rng.random() * sum(share for _, share in table)
    for name, share in table:
        x -= share
        if x < 0:
            return name
    return table[-1][0]


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


def document(seed: int, i: int) -> dict:
    """{"keys", "skill", "messages", "tools", "thinking", "effort", "response_format"} of document i."""
    rng = random.Random((seed << 40) + i)
    skill = _pick(rng, kMixture)
    doc = {"skill": skill, "tools": None, "thinking": rng.random() >= 0.10, "effort": None, "response_format": None}
    if skill == "recall":
        key, messages = recall.document(rng, int(160 * (7000 / 160) ** rng.random()))
        keys = [key]
    elif skill == "tools":
        key, messages, doc["tools"] = toolcalls.exchange(rng, TRAIN)
        keys = [key]
    elif skill == "chat" and rng.random() < 0.12:
        keys, messages = _conversation(rng)
    else:
        key, messages = _kSimple[skill](rng, TRAIN)
        keys = [key]
        if skill == "arith" and rng.random() < 0.08:
            for _ in range(rng.randint(1, 2)):
                previous = int(messages[-1]["content"])
                if previous < 2 or previous > 9999:
                    break
                key, more = arith.follow_up(rng, TRAIN, previous)
                keys.append(key)
                messages = messages + more
        if skill == "json" and rng.random() < 0.15:
            doc["response_format"] = {"type": "json_object"}
        elif rng.random() < 0.12:
            for _ in range(rng.randint(1, 2)):
                key, more = _kSimple[rng.choice(list(_kSimple))](rng, TRAIN)
                keys.append(key)
                messages = messages + more
    if skill != "recall" and rng.random() < 0.10:
        messages = [{"role": "system", "content": rng.choice(kSystems)}] + messages
    if doc["thinking"] and rng.random() < 0.05:
        doc["effort"] = rng.choice(kEfforts)
    return doc | {"keys": keys, "messages": messages}
