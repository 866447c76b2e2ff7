"""No held-out item occurs in the training stream: the stream is regenerated from its seed and searched.

Default: a fixed sample of the documents trained on. `--full`: all of them, in parallel with pytest-xdist's `-n`. Needs the standard library alone.
"""
import json
import pathlib
import random
import runpy
import sys
import types

import pytest

from corpus import agents, evalsets, stream
from corpus.split import TRAIN
from holdout import HeldOut

kModel = pathlib.Path(__file__).parents[2] / "models" / "tiny-k31"
kParts = json.loads((kModel / "training.json").read_text())["parts"]
kSample = {"short": 20_000, "long": 200, "huge": 10}  # documents of each stream and part
kShares = 8  # of a part: cases of their own, so that the whole can be walked in parallel


@pytest.fixture(scope="module")
def suites():
    paths = sorted((kModel / "eval").glob("*.jsonl"))
    assert paths, f"no suites in {kModel}"
    return {p.stem: list(evalsets.whole([json.loads(line) for line in p.read_text().splitlines()])) for p in paths}


@pytest.fixture(scope="module")
def held_out(suites):
    return HeldOut(suites)


def test_suites_are_the_generated_ones(suites):
    built = {n: list(evalsets.whole([evalsets.without_thoughts(i) for i in items])) for n, items in evalsets.build().items()}
    assert suites == json.loads(json.dumps(built))
    assert all(len(items) >= 100 for items in suites.values())
    assert suites["arithmetic"][0]["messages"][0]["content"] == "What is 17 + 25?"


def test_stream_is_a_pure_function_of_seed_and_index():
    assert stream.document(1, 777) == stream.document(1, 777)
    assert stream.document(1, 777) != stream.document(2, 777)


@pytest.mark.parametrize("share", range(kShares))
@pytest.mark.parametrize("number", range(1, len(kParts) + 1))
def test_no_held_out_item_is_trained(held_out, request, number, share):
    part, checked = kParts[number - 1], 0
    for name, total in part["documents"].items():
        stride = 1 if request.config.getoption("--full", default=False) else max(1, total // kSample[name])
        for i in range(share * stride, total, kShares * stride):
            leaks = held_out.leaks(stream.document(part["seed"], i, name))
            assert not leaks, f"document {i} of stream {name} of part {number} gives away {leaks}"
            checked += 1
    assert checked >= 1000


def test_open_conversations_ask_nothing_that_the_example_agent_is_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", types.ModuleType("openai"))  # the example imports it, its tasks need it not
    example = runpy.run_path(str(kModel.parents[1] / "examples" / "agent.py"))
    asked, rng = {question for task in example["TASKS"] for question, _ in task}, random.Random(1)
    for _ in range(8000):
        _, messages, _ = agents.open_conversation(rng, TRAIN)
        assert not asked & {m["content"] for m in messages if m["role"] == "user"}


def test_development_items_are_no_suite_items(suites):
    def asked(items):
        return {json.dumps([item["messages"], item.get("tools")]) for item in items}

    prompts = set().union(*map(asked, suites.values()))
    for name, items in evalsets.build(development=True).items():
        assert len(items) >= 100 and not asked(evalsets.whole(items)) & prompts, name


def test_a_planted_item_is_found(held_out, suites):
    for items in suites.values():
        item = items[-1]
        if "then" in item:
            assert held_out.leaks({"messages": item["messages"] + [m for t in item["then"] for m in t["messages"]]}) == [item["id"]]
            continue
        planted = {"messages": stream.document(1, 5)["messages"] + item["messages"] + [{"role": "assistant", "content": "?"}]}
        assert item["id"] in held_out.leaks(planted)


@pytest.mark.parametrize("messages", [
    [{"role": "user", "content": "Kindly add 25 to 17!"}, {"role": "assistant", "content": "42"}],
    [{"role": "user", "content": "I had 17 pens and got 25 more."}, {"role": "assistant", "content": "42"}],
    [{"role": "user", "content": "8 + 9"}, {"role": "assistant", "content": "17"}, {"role": "user", "content": "And plus 25?"},
     {"role": "assistant", "content": "42"}]])
def test_a_held_out_sum_is_found_in_any_wording(held_out, messages):
    assert held_out.leaks({"messages": messages}) == ["arithmetic-000"]


def test_an_innocent_document_is_not_accused(held_out):
    assert held_out.leaks({"messages": [{"role": "user", "content": "17 - 25"}, {"role": "assistant", "content": "-8"}]}) == []
