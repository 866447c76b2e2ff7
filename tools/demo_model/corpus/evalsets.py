"""The held-out suites, fixed by one seed: suite name -> list of items as they stand in eval/<suite>.jsonl."""
import json
import random

from . import arith, chat, jsonx, recall, sorting, toolcalls

kSuites = {"arithmetic": arith.eval_items, "tools": toolcalls.eval_items, "json": jsonx.eval_items,
           "sorting": sorting.eval_items, "chat": chat.eval_items, "recall": recall.eval_items}
kItemsPerSuite = 128
kSeed = 20261130


def build() -> dict:
    suites = {}
    for name, make in kSuites.items():
        items, seen = [], set()
        for item in make(random.Random(f"{kSeed}:{name}"), kItemsPerSuite * 2):
            text = json.dumps([item["messages"], item.get("tools")])
            if text not in seen and len(items) < kItemsPerSuite:
                seen.add(text)
                items.append({"id": f"{name}-{len(items):03d}"} | item)
        suites[name] = items
    return suites


def write(folder) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, items in build().items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items))
