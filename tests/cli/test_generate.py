"""perigee generate: the JSON surface, reproducibility, sampling, tools."""

import json
import re
import struct

import pytest
from perigee_cli import MODEL, ROOT, generate, needs_model, run

pytestmark = needs_model
QUESTION = "What is 17 + 25?"


def test_answers_a_question():
    out = generate(QUESTION, "--temperature", 0)
    assert out["text"].strip() == "42"
    assert out["finish_reason"] == "stop"
    assert out["reasoning"]
    assert out["tool_calls"] == []
    assert out["logprobs"] is None
    usage = out["usage"]
    assert usage["prompt_tokens"] > 0 and usage["cached_tokens"] == 0
    assert usage["completion_tokens"] == len(out["token_ids"])
    assert all(isinstance(i, int) for i in out["token_ids"])
    assert all(seconds >= 0 for seconds in out["timings"].values()) and out["timings"]
    assert re.fullmatch("[0-9a-f]{16}", out["numerics"])


def test_plain_text_output():
    done = run("generate", MODEL, "--prompt", QUESTION, "--temperature", 0)
    assert done.returncode == 0
    assert done.stdout.startswith("thinking: ") and done.stdout.endswith("\n42\n")
    assert "\033" not in done.stdout  # not a terminal: no colours


def test_the_seed_decides():
    # The shipped model is so sure of itself that only a hot draw differs from its first choice.
    for temperature, differ in ((1.5, False), (8, True)):
        one, again, *others = (
            generate(QUESTION, "--temperature", temperature, "--max-tokens", 24, "--seed", seed)["token_ids"]
            for seed in (1, 1, 2, 3)
        )
        assert one == again
        assert not differ or (one not in others and others[0] != others[1])


def test_threads_do_not_change_a_bit():
    one, two = (
        generate(QUESTION, "--temperature", 1, "--seed", 5, "--max-tokens", 24, "--logprobs", 2, "--threads", n)
        for n in (1, 2)
    )
    for key in ("token_ids", "logprobs", "text", "numerics"):
        assert one[key] == two[key]


def test_thinking_off():
    out = generate(QUESTION, "--temperature", 0, "--thinking", "off")
    assert out["reasoning"] == ""
    assert out["text"].strip() and out["finish_reason"] == "stop"


def test_system_message_is_in_the_prompt():
    plain, system = (
        generate(QUESTION, "--temperature", 0, "--max-tokens", 4, *extra)
        for extra in ((), ("--system", "You are a careful assistant."))
    )
    assert system["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 3


def test_max_tokens():
    out = generate(QUESTION, "--temperature", 0, "--max-tokens", 3)
    assert len(out["token_ids"]) == 3 and out["finish_reason"] == "length"


def test_tools(tmp_path):
    suite = (ROOT / MODEL / "eval" / "tools.jsonl").read_text().splitlines()
    item = next(
        item
        for item in map(json.loads, suite)
        if len(item["messages"]) == 1 and item["answer"]["type"] == "tool_calls" and item["thinking"]
    )
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(item["tools"]))
    out = generate(item["messages"][0]["content"], "--temperature", 0, "--tools", tools)
    assert out["finish_reason"] == "tool_calls"
    got = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in out["tool_calls"]]
    assert got == [(c["name"], c["arguments"]) for c in item["answer"]["calls"]]
    assert all(c["type"] == "function" and c["id"] for c in out["tool_calls"])
    assert len({c["id"] for c in out["tool_calls"]}) == len(out["tool_calls"])


def fp32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def digits(text):
    """Significant digits of a decimal, and its exponent: value = 0.DIGITS · 10^exponent."""
    mantissa, _, exponent = text.lstrip("-").upper().partition("E")
    whole, _, fraction = mantissa.partition(".")
    all_digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(all_digits)
    return all_digits.rstrip("0"), int(exponent or 0) + len(whole) - leading


def test_logprobs_are_shortest_round_trip_decimals():
    done = run("generate", MODEL, "--prompt", QUESTION, "--temperature", 0, "--logprobs", 3, "--json")
    numbers = []
    out = json.loads(done.stdout, parse_float=lambda text: numbers.append(text) or float(text))
    assert len(out["logprobs"]) == len(out["token_ids"])
    for entry, token_id in zip(out["logprobs"], out["token_ids"]):
        assert entry["token_id"] == token_id
        top = [t["logprob"] for t in entry["top"]]
        assert len(top) == 3 and top == sorted(top, reverse=True)
        assert entry["top"][0]["token_id"] == token_id  # temperature 0
        assert entry["logprob"] == top[0] <= 0
    logprobs = {abs(n) for e in out["logprobs"] for n in [e["logprob"]] + [t["logprob"] for t in e["top"]]}
    checked = 0  # many are exactly 0: the model is sure
    for text in numbers:
        if abs(float(text)) not in logprobs or float(text) == 0:
            continue  # a timing
        value = fp32(float(text))
        shown, exponent = digits(text)
        # No decimal with one digit less reads back as the same fp32: neither the one below nor the one above.
        if len(shown) > 1:
            shorter = int(shown[:-1])
            for candidate in (shorter, shorter + 1):
                assert fp32(float(f"-{candidate}e{exponent - len(shown) + 1}")) != -abs(value), text
        assert len(shown) <= 9
        checked += 1
    assert checked >= len(out["token_ids"])


@pytest.mark.parametrize("dtype", ["fp8", "nvfp4"])
def test_cache_formats_have_their_own_identity(dtype):
    plain, other = (
        generate(QUESTION, "--temperature", 0, *extra)
        for extra in (("--max-tokens", 1), ("--max-tokens", 1, "--kv-cache-dtype", dtype))
    )
    assert plain["numerics"] != other["numerics"]


def test_stop_string_ends_the_text_before_it():
    free = generate(QUESTION, "--temperature", "0")
    assert "42" in free["text"]
    cut = generate(QUESTION, "--temperature", "0", "--stop", "2")
    assert cut["text"] == free["text"].split("2")[0]
    assert cut["finish_reason"] == "stop"
    assert len(cut["token_ids"]) < len(free["token_ids"])


def test_minimum_length_and_ignored_end_go_on():
    free = generate(QUESTION, "--temperature", "0")
    longer = generate(QUESTION, "--temperature", "0", "--min-tokens", str(len(free["token_ids"]) + 5))
    assert len(longer["token_ids"]) >= len(free["token_ids"]) + 5
    on = generate(QUESTION, "--temperature", "0", "--ignore-eos", "--max-tokens", "60")
    assert len(on["token_ids"]) == 60 and on["finish_reason"] == "length"


def test_penalties_change_the_draw_and_not_the_logprobs():
    free = generate(QUESTION, "--temperature", "0", "--logprobs", "0", "--max-tokens", "8")
    same = generate(QUESTION, "--temperature", "0", "--logprobs", "0", "--max-tokens", "8", "--repetition-penalty", "1")
    assert same["token_ids"] == free["token_ids"]
    other = generate(QUESTION, "--temperature", "0", "--logprobs", "0", "--max-tokens", "8", "--repetition-penalty", "5")
    assert other["token_ids"] != free["token_ids"]
    assert other["logprobs"][0]["logprob"] <= free["logprobs"][0]["logprob"]
