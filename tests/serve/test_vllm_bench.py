"""The requests of `vllm bench serve`, and its reading of the answers; the program itself comes with gigabytes."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from server import MODEL, needs_model

pytestmark = needs_model
COMMON = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.0, "ignore_eos": True}
ENDPOINTS = {
    "/v1/completions": {"prompt": "one two three", "repetition_penalty": 1.0, "max_tokens": 24, "logprobs": None},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": [{"type": "text", "text": "one two three"}]}], "max_completion_tokens": 24},
}


def measure(url, endpoint, number):
    """Text, pieces and usage, read as that client reads them."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer None", "x-request-id": f"bench-{number}"}
    request = urllib.request.Request(url + endpoint, json.dumps({**COMMON, **ENDPOINTS[endpoint]}).encode(), headers)
    pieces, usage, done = [], None, False
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
        for line in answer:
            line = line.strip()
            if not line or line.startswith(b":"):
                continue
            chunk = line.decode().removeprefix("data: ")
            if chunk == "[DONE]":
                done = True
                continue
            data = json.loads(chunk)
            if choices := data.get("choices"):
                pieces.append(choices[0].get("text") if "text" in choices[0] else choices[0]["delta"].get("content"))
            elif data.get("usage"):
                usage = data["usage"]
    assert done
    return pieces, usage


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_its_requests(server, endpoint):
    models = json.load(urllib.request.urlopen(server.url + "/v1/models"))["data"]
    assert models[0]["id"] == MODEL
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: measure(server.url, endpoint, number), range(8)))
    pieces, usage = results[0]
    assert usage["completion_tokens"] == 24 and usage["prompt_tokens"] > 0
    # It counts pieces for the times between tokens.
    assert 12 <= len(pieces) <= 26
    assert all(result[0] == pieces and result[1]["completion_tokens"] == 24 for result in results)
