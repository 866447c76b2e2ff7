"""perigee generate --batch: killed in the middle, it goes on with nothing done twice and nothing lost."""

import json
import subprocess
import time

import pytest
from perigee_cli import BINARY, MODEL, ROOT, fails, needs_model, run

QUESTIONS = 40


def request(i):
    if i % 9 == 4:
        return {"custom_id": f"bad {i}", "url": "/v1/chat/completions", "body": {"messages": []}}
    if i % 4 == 1:
        body = {"prompt": f"Line {i}: the", "max_tokens": 12, "temperature": 0, "logprobs": 1}
        return {"custom_id": f"text {i}", "method": "POST", "url": "/v1/completions", "body": body}
    messages = [{"role": "user", "content": f"What is {i} + {i * 7 % 50}?"}]
    body = {"messages": messages, "max_tokens": 96, "temperature": 1, "seed": i}
    return {"custom_id": f"chat {i}", "method": "POST", "url": "/v1/chat/completions", "body": body}


@pytest.fixture
def requests(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(request(i)) + "\n" for i in range(QUESTIONS)))
    return path


def command(requests, out):
    return ["generate", MODEL, "--batch", requests, "--out", out, "--max-num-seqs", 4]


def answers(path):
    """By custom_id, without the time of the answer."""
    found = {}
    for line in path.read_text().splitlines():
        answer = json.loads(line)
        assert answer["error"] is None and answer["custom_id"] not in found
        answer["response"]["body"].pop("created", None)
        answer["response"]["body"].get("usage", {}).pop("prompt_tokens_details", None)  # reuse follows the order
        found[answer["custom_id"]] = answer
    return found


@needs_model
def test_killed_in_the_middle(requests, tmp_path):
    whole = tmp_path / "whole.jsonl"
    done = run(*command(requests, whole))
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert f"{QUESTIONS} requests: 36 answered, 4 failed, 0 had their answer already" in done.stderr

    out = tmp_path / "out.jsonl"
    kills, before = 0, b""
    while kills < 4:
        process = subprocess.Popen([BINARY, *map(str, command(requests, out))], cwd=ROOT, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            if out.exists() and out.read_bytes().count(b"\n") >= before.count(b"\n") + 5:
                process.kill()
                process.wait()
                break
            time.sleep(0.001)
        if process.returncode == 0:
            break
        kills += 1
        now = out.read_bytes()
        assert now.startswith(before)
        before = now[: now.rfind(b"\n") + 1]
        if kills % 2:  # as if the kill had come inside a write
            out.write_bytes(before + now[: len(now.splitlines()[0]) // kills])
    assert kills >= 2
    last = run(*command(requests, out))
    assert last.returncode == 0 and out.read_bytes().startswith(before)
    assert answers(out) == answers(whole)
    assert len(answers(out)) == QUESTIONS


@needs_model
def test_usage(requests, tmp_path):
    out = tmp_path / "out.jsonl"
    assert "--out" in fails(2, "generate", MODEL, "--batch", requests)
    assert "--prompt, not with --batch" in fails(2, *command(requests, out), "--temperature", 0)
    assert "--batch, not with --prompt" in fails(2, "generate", MODEL, "--prompt", "Hi", "--out", out)
    assert "give --prompt TEXT" in fails(2, "generate", MODEL)
    assert "/nowhere" in fails(2, "generate", MODEL, "--batch", "/nowhere", "--out", out)
    assert "not an answer of a batch" in fails(1, "generate", MODEL, "--batch", requests, "--out", requests)
    assert not out.exists() and requests.read_text().count("\n") == QUESTIONS
