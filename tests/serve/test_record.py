"""serve --record: whatever a server was asked, prescribed forms too, `perigee replay` computes again."""

import json
import re
import subprocess
import threading

from server import BINARY, ROOT, Server, needs_model
from test_process import post

pytestmark = needs_model


def text(server, **body):
    return json.loads(post(server, {"prompt": "The", "seed": 4, **body}, "/v1/completions").read())["choices"][0]["text"]


def replay(log):
    done = subprocess.run([BINARY, "replay", log, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_servers_log_replays(tmp_path):
    log, file = tmp_path / "log.jsonl", tmp_path / "tier"
    tiers = ["--kv-offloading-size", 0.02, "--kv-offloading-file", file, "--kv-offloading-file-size", 0.02]
    flags = ["--cache-memory", 0.1, "--max-num-seqs", 4, "--logprobs-mode", "processed_logprobs"]
    with Server("--record", log, *flags, *tiers) as server:
        assert not file.exists()  # made and unlinked
        question = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, "seed": 1}
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
        form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}

        def ask(extra):
            post(server, {**question, "max_tokens": 60, **extra}).read()

        asked = [{}, {"n": 3, "temperature": 1}, {"response_format": form}, {"stop": ["4"]}, {"logit_bias": {"9": 5}}]
        threads = [threading.Thread(target=ask, args=(extra,)) for extra in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert re.fullmatch(r"[ab]{3}", text(server, structured_outputs={"regex": "[ab]{3}"}))
        body = {"prompt": "The", "max_tokens": 2, "top_k": 1, "logprobs": 2, "seed": 1, "temperature": 1}
        choice = json.loads(post(server, body, "/v1/completions").read())["choices"][0]
        assert choice["logprobs"]["token_logprobs"] == [0, 0]  # of what was drawn from: one token
        stream = post(server, {**question, "max_tokens": 4000, "ignore_eos": True, "stream": True})
        stream.readline()
        stream.close()  # cancelled
        text(server, max_tokens=4)
        while True:  # not while the cancelled one is still here
            try:
                assert post(server, {}, "/reset_prefix_cache").status == 200
                break
            except OSError:
                pass
        ask({})
        assert server.stop() == 0
    lines = log.read_text().splitlines()
    assert sum('"constraint":{' in line for line in lines) == 2
    assert any(line.startswith('{"cancel":') for line in lines)
    assert sum(line.startswith('{"reset_prefix_cache":') for line in lines) == 1
    out = replay(log)
    assert out["same"] and not out["cut"] and out["requests"] == 10, out

    damaged = [line.replace('"rules":', '"rulers":') for line in lines]
    log.write_text("\n".join(damaged) + "\n")
    done = subprocess.run([BINARY, "replay", log], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "recorded grammar: it has no rules" in done.stderr
