"""Scores the held-out suites by free-running greedy decoding: {suite: (right, asked)} and a few wrong answers to read."""
import json
import pathlib

import encode
import vocab
import xtml
from corpus import evalsets
from decode import Decoder


def is_right(reply, answer):
    if reply is None:
        return False
    if answer["type"] == "text":
        return not reply["calls"] and reply["content"].strip() == answer["text"]
    if answer["type"] == "tool_calls":
        return reply["calls"] == answer["calls"]
    try:
        return json.loads(reply["content"]) == answer["value"]
    except ValueError:
        return False


def suites(folder, limit=None):
    return {path.stem: list(evalsets.whole([json.loads(line) for line in path.read_text().splitlines()]))[:limit]
            for path in sorted((pathlib.Path(folder) / "eval").glob("*.jsonl"))}


def run(text, weights, folder, limit=None, wrong_shown=3, only=None, **decoder_options):
    tokenizer, decoder = vocab.Tokenizer(pathlib.Path(folder)), Decoder(text, weights, **decoder_options)
    chosen = {n: items for n, items in suites(folder, limit).items() if not only or n in only}
    alone = ("tools",)  # long prompts: every step of a batch costs the same, so like goes with like
    short = [(n, i) for n, items in chosen.items() if n not in alone for i in items]
    batches = [b for b in (short, *([(n, i) for i in chosen.get(n, [])] for n in alone)) if b]
    scores, wrong, replies = {n: [0, 0] for n in chosen}, [], {}
    for batch in batches:
        prompts = [encode.prompt(tokenizer, item) for _, item in batch]
        for (name, item), ids in zip(batch, decoder.greedy(prompts, [i["max_tokens"] for _, i in batch], vocab.kEndOfMessage)):
            said = tokenizer.decode(ids)
            right = is_right(xtml.parse(said, item["thinking"]), item["answer"])
            scores[name][0] += right
            scores[name][1] += 1
            replies[item["id"]] = said
            if not right and sum(w[0] == name for w in wrong) < wrong_shown:
                wrong.append((name, item["id"], item["messages"][-1]["content"], said, item["answer"]))
    return scores, wrong, replies
