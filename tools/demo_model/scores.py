"""Scores of the suites under teacher forcing: an answer counts when every token of it, reasoning included, is the most likely one.

With one gold answer that equals greedy decoding, except that another reasoning with the same answer counts as wrong.
"""
import numpy as np
import torch

import data
import encode
import vocab
from corpus import evalsets
from parameters import kPrefix

kLong = 7900  # tokens; longer documents take a row of their own


def _message(answer, thought):
    calls = [{"id": f"call_{i + 1}", "type": "function", "function": c} for i, c in enumerate(answer.get("calls", []))]
    import json
    content = answer["text"] if answer["type"] == "text" else json.dumps(answer["value"]) if answer["type"] == "json" else ""
    return {"role": "assistant", "reasoning_content": thought, "content": content} | ({"tool_calls": calls} if calls else {})


def _documents(lines):
    """(document, questions that are items of their own?): items alone, or all questions about a text one after another."""
    texts = {l["document"]: l["text"] for l in lines if "text" in l}
    asked = {}
    for item in (l for l in lines if "text" not in l):
        if "document" not in item:
            messages = list(item["messages"])
            for turn in [item, *item.get("then", [])]:
                messages += (turn["messages"] if turn is not item else []) + [_message(turn["answer"], turn["thought"])]
            yield {"messages": messages, "tools": item.get("tools")}, False
        else:
            asked.setdefault(item["document"], []).append(item)
    for name, items in asked.items():
        messages = []
        for item in items:
            first = item["messages"][0]
            messages += [first if messages else first | {"content": texts[name] + "\n" + first["content"]}, _message(item["answer"], item["thought"])]
        yield {"messages": messages, "tools": None}, True


def encoded(folder, only=None, limit=None, development=False):
    """[(suite, ids, weights, one item an answer?)]"""
    tokenizer, out = vocab.Tokenizer(folder), []
    for name, lines in evalsets.build(development).items():
        if only and name not in only:
            continue
        for n, (document, split) in enumerate(_documents(lines)):
            if limit and n >= limit:
                break
            ids, weights = encode.document(tokenizer, document | {"thinking": True, "effort": None, "response_format": None, "context_weight": 0.0})
            out.append((name, ids, weights, split))
    return out


def _pack(documents, shape):
    rows, used, batch = [[] for _ in range(shape["rows"])], [0] * shape["rows"], []
    for d in documents:
        size = len(d[1])
        if size > shape["length"]:
            print(f"left out: {d[0]} of {size} tokens")
            continue
        row = int(np.argmin(used))
        if used[row] + size > shape["length"] or sum(map(len, rows)) + 2 * shape["rows"] >= shape["max_documents"]:
            yield rows
            rows, used, row = [[] for _ in range(shape["rows"])], [0] * shape["rows"], 0
        rows[row].append(d)
        used[row] += size
    yield rows


def _wrong(trainer, stream, batch, head):
    trainer.load_batch(stream, batch)
    x = trainer.model.hidden(trainer.batch, False)[0].detach()
    best = torch.cat([(part @ head.t()).argmax(-1) for part in x.split(16384)])
    return ((best != trainer.batch["target"]) & (trainer.batch["weight"] > 0.5)).cpu().numpy()


def run(trainer, documents, selection=None, stored="bf16"):
    """{suite: [right, asked]}; selection: (keys a query reads, by chance?), or all keys; stored: format of the latents."""
    model, scores, rng = trainer.model, {}, np.random.default_rng(1)
    model.selection = selection
    head = trainer.weights[kPrefix + "lm_head.weight"].detach()
    bounds = {"short": (0, min(kLong, trainer.shapes["short"]["length"])), "long": (kLong, trainer.shapes["long"]["length"]),
              "huge": (trainer.shapes["long"]["length"], 1 << 30)}
    for stream, (low, high) in bounds.items():
        shape = trainer.shapes[stream]
        chosen = sorted((d for d in documents if low < len(d[1]) <= high), key=lambda d: len(d[1]))
        for rows in _pack(chosen, shape) if chosen else ():
            batch = data.batch([[(ids, weights) for _, ids, weights, _ in row] for row in rows], shape["length"], shape["max_documents"], rng, stored)
            wrong = _wrong(trainer, stream, batch, head)
            for r, row in enumerate(rows):
                at = r * shape["length"]
                for name, ids, weights, split in row:
                    answer = np.asarray(weights[1:]) > 0.5
                    spans = np.flatnonzero(np.diff(np.concatenate([[0], answer.astype(np.int8), [0]]))).reshape(-1, 2)
                    bad = [bool(wrong[at + a:at + b].any()) for a, b in spans]
                    right, asked = (len(bad) - sum(bad), len(bad)) if split else (int(not any(bad)), 1)
                    score = scores.setdefault(name, [0, 0])
                    score[0] += right
                    score[1] += asked
                    at += len(ids)
    model.selection = None
    return scores
