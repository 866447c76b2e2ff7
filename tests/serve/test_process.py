"""The process: start, flags, signals, TLS, the log."""

import json
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from server import BINARY, MODEL, ROOT, Server, needs_model

pytestmark = needs_model


def post(server, body, path="/v1/chat/completions", **headers):
    data = json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json", **headers})
    return urllib.request.urlopen(request, timeout=60)


def status_of(call):
    try:
        return call().status
    except urllib.error.HTTPError as error:
        return error.code


LONG = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "ignore_eos": True, "stream": True}


def test_sigterm_drains_and_exits_with_0():
    with Server() as server:
        stream = post(server, LONG)
        first = stream.readline()
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 20
        while status_of(lambda: urllib.request.urlopen(server.url + "/ready")) != 503:
            assert time.monotonic() < end
        assert status_of(lambda: urllib.request.urlopen(server.url + "/health")) == 200
        assert status_of(lambda: post(server, {"messages": [{"role": "user", "content": "Hi"}]})) == 503
        rest = stream.read().decode()
        assert first.startswith(b"data: ") and rest.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in rest
        assert server.process.wait(30) == 0


def test_the_shutdown_timeout_ends_what_is_left_with_an_error():
    with Server("--shutdown-timeout", 0) as server:
        stream = post(server, {**LONG, "max_tokens": 100000})
        stream.readline()
        server.process.send_signal(signal.SIGTERM)
        rest = stream.read().decode()
        assert "the server stopped" in rest and rest.endswith("data: [DONE]\n\n")
        assert server.process.wait(30) == 0


def test_a_second_signal_ends_at_once():
    with Server() as server:
        stream = post(server, {**LONG, "max_tokens": 100000})
        stream.readline()
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 128 + signal.SIGINT


def test_keys_by_flag_and_environment():
    with Server("--api-key", "one", env={"PERIGEE_API_KEY": "two"}) as server:
        for key, status in (("one", 200), ("two", 200), ("three", 401), ("", 401)):
            request = urllib.request.Request(server.url + "/v1/models", headers={"Authorization": "Bearer " + key})
            assert status_of(lambda: urllib.request.urlopen(request)) == status
        assert server.stop() == 0


def test_the_access_log_is_json():
    with Server("--served-model-name", "tiny", "--served-model-name", "alias") as server:
        answer = json.load(post(server, {"model": "alias", "messages": [{"role": "user", "content": "Hi"}]}, **{"X-Request-Id": "my-id"}))
        assert answer["model"] == "tiny" and answer["id"] == "chatcmpl-my-id"
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
        assert [(one["id"], one["method"], one["path"], one["status"]) for one in lines] == [
            ("my-id", "POST", "/v1/chat/completions", 200)]


def test_tls(tmp_path):
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
        capture_output=True)  # fmt: skip
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    context = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    with Server("--ssl-certfile", tmp_path / "cert.pem", "--ssl-keyfile", tmp_path / "key.pem") as server:
        assert server.url.startswith("https://")
        request = urllib.request.Request(
            server.url + "/v1/chat/completions",
            json.dumps({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, "stream": True}).encode())
        text = urllib.request.urlopen(request, context=context, timeout=60).read().decode()
        assert '"content":"4' in text and text.endswith("data: [DONE]\n\n")
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(server.url + "/health", timeout=10)  # does not trust the certificate
        assert server.stop() == 0


@pytest.mark.parametrize(
    "args, word",
    [
        (["--port", "70000"], "--port"),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size"),
        (["--speculative-config", "{}"], "--speculative-config"),
        (["--kv-transfer-config", "{}"], "--kv-transfer-config"),
        (["--enable-lora"], "--enable-lora"),
        (["--tool-call-parser", "hermes"], "--tool-call-parser"),
        (["--max-model-len", "99999999"], "--max-model-len"),
        (["--allowed-origins", "*"], "--allowed-origins"),
        (["--default-chat-template-kwargs", "thinking"], "--default-chat-template-kwargs"),
        (["--ssl-certfile", "x.pem"], "--ssl-keyfile"),
        (["--ssl-certfile", "absent.pem", "--ssl-keyfile", "absent.pem"], "absent.pem"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--max-num-sequences", "4"], "--max-num-seqs"),
        (["-tp", "8"], "--tensor-parallel-size: '8'"),
        (["-tp=8"], "--tensor-parallel-size: '8'"),
        (["--tensor_parallel_size", "2"], "one rank"),
        (["--dtype", "float16"], "bf16"),
        (["--tokenizer", "/other"], "/other"),
        (["--max-model-len", "4q"], "4q"),
        (["--max-model-len", "0x10"], "0x10"),
        (["-c", "99999k"], "--max-model-len 99999000"),
        (["--chat-template", "x.jinja"], "--default-chat-template-kwargs"),
        (["-hf", "some/model"], "give MODEL"),
        (["--lora-modules", "x"], "merged weights"),
        (["-ctk", "q8_0"], "--kv-cache-dtype"),
        (["--no-enable-chunked-prefill"], "--max-num-batched-tokens"),
        (["--gpu-memory-utilization", "2"], "--gpu-memory-utilization"),
        (["--swap-space"], "--swap-space needs a value"),
    ],
)
def test_flags_that_cannot_be(args, word):
    done = subprocess.run([BINARY, "serve", MODEL, "--port", "0", *args], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "" and word in done.stderr.splitlines()[-1], done.stderr


def test_a_port_in_use():
    with Server() as server:
        done = subprocess.run([BINARY, "serve", MODEL, "--port", str(server.port)], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and str(server.port) in done.stderr


def test_flags_of_vllm_that_change_nothing():
    with Server("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k3", "--reasoning-parser", "kimi_k3", "--trust-remote-code",
                "--tensor-parallel-size", "1", "--enable-prefix-caching", "--default-chat-template-kwargs", '{"thinking": false}') as server:  # fmt: skip
        answer = json.load(post(server, {"messages": [{"role": "user", "content": "Hi"}]}))
        assert "reasoning" not in answer["choices"][0]["message"]
        assert server.stop() == 0


def models_of(server):
    return json.load(urllib.request.urlopen(server.url + "/v1/models"))["data"]


def test_flags_of_other_servers():
    """Each works, or says in one line why it changes nothing."""
    quiet = {
        "--dtype": "bfloat16", "--gpu-memory-utilization": "0.9", "--swap-space": "4", "-ngl": "99", "--flash-attn": None, "-fa": "on",
        "--enforce-eager": None, "--disable-log-requests": None, "--jinja": None, "--enable-chunked-prefill": None, "-tp": "1",
        "--trust_remote_code": None, "--enable-auto-tool-choice": None, "--tool-call-parser": "kimi_k2",
        "--reasoning-parser": "kimi_k2", "--cpu-offload-gb": "0", "--max-logprobs": "20", "--generation-config": "auto"}  # fmt: skip
    args = [word for flag, value in quiet.items() if flag != "-fa" for word in (flag, value) if word]
    with Server(*args, "--max_model_len", "4k", "--parallel", "8", "-b=1k", "-a", "tiny", "--tokenizer", MODEL,
                "--uvicorn-log-level", "warning", "--seed", "7") as server:  # fmt: skip
        assert [(m["id"], m["max_model_len"]) for m in models_of(server)] == [("tiny", 4000)]
        ask = {"prompt": "The", "temperature": 2, "max_tokens": 16}
        texts = [json.load(post(server, {**ask, **more}, "/v1/completions"))["choices"][0]["text"] for more in ({}, {}, {"seed": 7}, {"seed": 8})]
        assert texts[0] == texts[1] == texts[2] != texts[3]
        assert server.stop() == 0
    said = [line for line in server.log.splitlines() if " has no effect: " in line]
    assert len(said) == len(set(said)) == len(quiet) - 1, said  # -fa is --flash-attn
    assert not [line for line in server.log.splitlines() if line.startswith("{")]  # no access log


@pytest.mark.parametrize("size, tokens", [("4096", 4096), ("4K", 4096), ("2.5k", 2500), ("auto", None)])
def test_the_model_by_flag(size, tokens):
    with Server("-c", size, model=["-m", MODEL]) as server:
        served = models_of(server)[0]
        assert served["id"] == MODEL and (served["max_model_len"] == tokens or tokens is None)
        assert server.stop() == 0


CONFIG = f"""# as vLLM has it
model: {MODEL}
served_model_name: [from-file, second]
max-model-len: 4k
ctx-size: null
disable-access-log: true
trust-remote-code: yes
jinja: false
default-chat-template-kwargs: {{thinking: false}}
allowed-origins: '["*"]'
"""


def test_flags_from_a_file(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(CONFIG)
    with Server("--config", file, model=[]) as server:
        assert [(m["id"], m["max_model_len"]) for m in models_of(server)] == [("from-file", 4000), ("second", 4000)]
        answer = json.load(post(server, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}))
        assert "reasoning" not in answer["choices"][0]["message"]
        assert server.stop() == 0
        assert "--trust-remote-code has no effect" in server.log and "--jinja" not in server.log and "{" not in server.log
    # The command line goes before the file, under whatever name.
    with Server(f"--config={file}", "-c", "5k", "--alias", "mine", model=["-m", MODEL + "/"]) as server:
        assert [(m["id"], m["max_model_len"], m["root"]) for m in models_of(server)] == [("mine", 5000, MODEL)]
        assert server.stop() == 0


@pytest.mark.parametrize(
    "text, on",
    [
        ("enable-prefix-caching: false", False),
        ("no-enable-prefix-caching: true", False),
        ("no-enable-prefix-caching: false", True),
    ],
)
def test_a_flag_that_is_false_in_a_file(tmp_path, text, on):
    file, log = tmp_path / "serve.yaml", tmp_path / "log.jsonl"
    file.write_text(text)
    with Server("--config", file, "--record", log) as server:
        assert server.stop() == 0
    assert json.loads(log.read_text().splitlines()[0])["prefix_caching"] is on


@pytest.mark.parametrize(
    "text, word",
    [
        ("max-model-length: 3", "max-model-len"),
        ("port: [", "--config"),
        ("- port", "give names of flags"),
        ("config: other.yaml", "'config' is no flag"),
        ("port: 70000", "--port"),
        ("enforce-eager: 3", "enforce-eager is 3"),
        ("port: 1\nport: 2", "twice"),
        ("model: 3", "model is not a text"),
        ("gpu_memory_utilization: lots", "--gpu-memory-utilization"),
    ],
)
def test_files_of_flags_that_cannot_be(tmp_path, text, word):
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    done = subprocess.run([BINARY, "serve", MODEL, "--config", file], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and word in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    done = subprocess.run([BINARY, "serve", MODEL, "--config", tmp_path / "absent"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "absent" in done.stderr


def test_a_long_prompt_does_not_hold_up_health():
    """2,000 messages are read and tokenised while /health answers."""
    with Server("--disable-access-log") as server:
        messages = [{"role": "user", "content": "word " * 60}] * 2000
        done = []
        asker = threading.Thread(target=lambda: done.append(status_of(lambda: post(server, {"messages": messages, "max_tokens": 1}, "/tokenize"))))
        asker.start()
        answered = 0
        while asker.is_alive():
            assert urllib.request.urlopen(server.url + "/health", timeout=10).status == 200
            answered += 1
        asker.join()
        assert done == [200] and answered > 0
