"""Strict JSON to a given schema: nested objects and arrays, filled from sentences in another order."""
import json

from .jsonx import kKinds
from .split import EVAL, draw
from .words import kFirstNames, kItems

kAsk = ["Answer with JSON that fits this schema: {schema}\n{s}", "{s}\nReturn JSON for the schema {schema}", "Schema: {schema}\nText: {s}\nGive me the JSON.",
        "Fill this JSON schema: {schema}\nfrom this text: {s}"]
kNames = {"_person": ["person", "employee", "contact"], "_order": ["order", "purchase", "sale"], "_event": ["event", "appointment"],
          "_trip": ["trip", "journey", "booking"], "_product": ["product", "article"]}


def _schema_of(value):
    if isinstance(value, dict):
        return {"type": "object", "properties": {k: _schema_of(v) for k, v in value.items()}, "required": list(value)}
    if isinstance(value, list):
        return {"type": "array", "items": _schema_of(value[0])}
    return {"type": "boolean" if isinstance(value, bool) else "integer" if isinstance(value, int) else "string"}


def _sample(rng):
    parts, sentences = {}, []
    for kind in rng.sample(kKinds, rng.randint(1, 2)):
        values, sentence = kind(rng)
        keys = rng.sample(list(values), rng.randint(2, 4))
        parts[rng.choice(kNames[kind.__name__])] = {k: values[k] for k in keys}
        sentences.append(sentence.format(**values))
    if rng.random() < 0.5:
        stock = [{"item": i, "count": rng.randint(2, 60)} for i in rng.sample(kItems, rng.randint(2, 3))]
        parts[rng.choice(("stock", "list", "items"))] = stock
        sentences.append("There are " + ", ".join(f"{s['count']} x {s['item']}" for s in stock) + ".")
    if rng.random() < 0.3:
        owner = rng.choice(kFirstNames)
        parts = {"owner": owner, "data": parts}
        sentences.append(f"The owner is {owner}.")
    elif rng.random() < 0.3 and len(parts) == 1:
        parts = next(iter(parts.values()))
    order = list(parts.items())
    rng.shuffle(order)
    rng.shuffle(sentences)
    value = dict(order)
    return "schema:" + json.dumps(value), (value, " ".join(sentences))


def _facts(value):
    out = []
    for k, v in value.items():
        if isinstance(v, dict):
            out += _facts(v)
        elif isinstance(v, list):
            out += [f"{k} has {len(v)} entries"]
        else:
            out.append(f"{k} is {json.dumps(v) if isinstance(v, bool) else v}")
    return out


def exchange(rng, split):
    key, (value, text) = draw(rng, split, _sample)
    schema = json.dumps(_schema_of(value), separators=(",", ":"))
    return key, [{"role": "user", "content": rng.choice(kAsk).format(schema=schema, s=text)},
                 {"role": "assistant", "reasoning_content": "; ".join(_facts(value)) + ".", "content": json.dumps(value)}]


def eval_items(rng, count):
    items = []
    for _ in range(count):
        _, (question, reply) = exchange(rng, EVAL)
        items.append({"messages": [question], "thinking": True, "max_tokens": 360,
                      "answer": {"type": "json", "value": json.loads(reply["content"])}, "thought": reply["reasoning_content"]})
    return items
