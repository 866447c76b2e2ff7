"""The held-out suites, fixed by one seed: suite name -> lines of eval/<suite>.jsonl; and their development twins.

A line is an item, or a document that items name by its id: their first message then starts with the document's text and a
line break, so that all questions about it share one prefix. Mixture and schedule are chosen by the development items, which
are drawn as the suites are from another seed, share no question with them, and are written nowhere.
"""
import json
import random

from . import agents, arith, chat, context, events, jsonx, keyvalue, measures, recall, schema, sorting, steps, toolcalls

kSuites = {
    "arithmetic": (arith.eval_items, 128), "arithmetic-5": (steps.eval_items, 104), "tools": (toolcalls.eval_items, 128),
    "tools-8": (agents.choice_items, 104), "agents": (agents.agent_items, 104), "json": (jsonx.eval_items, 128), "schema": (schema.eval_items, 104),
    "sorting": (sorting.eval_items, 128), "chat": (chat.eval_items, 128), "facts": (chat.fact_items, 104), "refusal": (context.eval_items, 104),
    "measures": (measures.eval_items, 104)}
# Suites of a few documents with many questions each.
kDocumentSuites = {
    "needle-4k": keyvalue.needle_suite(4000, 3, 34), "needle-16k": keyvalue.needle_suite(16000, 2, 50),
    "needle-32k": keyvalue.needle_suite(32000, 1, 100), "needle-64k": keyvalue.needle_suite(64000, 1, 100),
    "needle-128k": keyvalue.needle_suite(127000, 1, 100), "multi-hop": keyvalue.hop_suite(4000, 5, 26),
    "count": keyvalue.aggregate_suite("count", 120, 10, 11), "list-all": keyvalue.aggregate_suite("list", 120, 10, 11),
    "state": events.suite(events.Places, 26, 4), "totals": events.suite(events.Points, 26, 4), "recall": recall.suite((800, 1600, 3000), 4, 9)}
kSeed = 20261130


def _text(item):
    return json.dumps([item["messages"], item.get("tools")])


def build(development=False) -> dict:
    suites, seed = {}, f"{kSeed}:development" if development else kSeed
    taken = {_text(line) for lines in build().values() for line in lines if "messages" in line} if development else ()
    for name, (make, count) in kSuites.items():
        items, seen = [], set(taken)
        for item in make(random.Random(f"{seed}:{name}"), count * 2):
            text = _text(item)
            if text not in seen and len(items) < count:
                seen.add(text)
                items.append({"id": f"{name}-{len(items):03d}"} | item)
        suites[name] = items
    for name, make in kDocumentSuites.items():
        lines, number = [], 0
        for line in make(random.Random(f"{seed}:{name}")):
            if "answer" in line:
                line = {"id": f"{name}-{number:03d}"} | line
                number += 1
            lines.append(line)
        suites[name] = lines
    return suites


def without_thoughts(item) -> dict:
    """An item as its file holds it: the expected reasoning is for training-time scores only."""
    out = {k: v for k, v in item.items() if k != "thought"}
    return out | {"then": [without_thoughts(t) for t in out["then"]]} if "then" in out else out


def write(folder) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, items in build().items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(without_thoughts(i), ensure_ascii=False) + "\n" for i in items))


def whole(lines):
    """Items with their documents' text in place."""
    texts = {l["document"]: l["text"] for l in lines if "text" in l}
    for item in lines:
        if "text" in item:
            continue
        if "document" in item:
            first, *rest = item["messages"]
            item = item | {"messages": [first | {"content": texts[item["document"]] + "\n" + first["content"]}, *rest]}
        yield item
