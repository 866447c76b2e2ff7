#!/usr/bin/env python3
"""Puts `perigee serve` under load and writes bench/results/DATE-cpu-serve-load.json.

A thousand streams at once over the real engine (memory, the longest silence), /health meanwhile, and what masks of
prescribed forms cost beside free answers. Run it on a quiet machine; the client runs on the same cores.
"""

import argparse
import datetime
import http.client
import json
import multiprocessing
import os
import re
import select
import signal
import socket
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "models/tiny-k31"
HEARTBEAT = 10  # seconds of silence after which a stream carries a comment line
CACHE = 1  # GB
SWEEP = 1.5  # the server looks about once a second


class Server:
    def __init__(self, binary, *flags):
        command = [binary, "serve", MODEL, "--port", "0", "--disable-access-log", *map(str, flags)]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.match(r"serving .* at http://.*:(\d+) ", line):
                self.port = int(found[1])
                return
        raise SystemExit("the server did not start")

    def peak_memory(self):
        """Bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) * 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(method, path, json.dumps(body) if body else None)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    return json.loads(text)


def probe_health(port, stop, out):
    """Seconds that /health took, asked twenty times a second over connections of their own."""
    times = []
    while not stop.is_set():
        began = time.perf_counter()
        ask(port, "GET", "/health")
        times.append(time.perf_counter() - began)
        time.sleep(max(0, 0.05 - times[-1]))
    out.put(times)


class Health:
    """/health is asked while this is entered."""

    def __init__(self, port):
        self.stop, self.out = multiprocessing.Event(), multiprocessing.Queue()
        self.process = multiprocessing.Process(target=probe_health, args=(port, self.stop, self.out))

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.times = self.out.get(timeout=60)
        self.process.join()


def read_streams(port, count, tokens):
    """Runs the streams to their ends: seconds in all, and the longest time that one was silent."""
    body = json.dumps({"prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "stream": True}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    poll, streams = select.epoll(), {}
    began = time.monotonic()
    for _ in range(count):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(request)
        s.setblocking(False)
        streams[s.fileno()] = [s, b"", time.monotonic()]
        poll.register(s.fileno(), select.EPOLLIN)
    silence, open_streams = 0.0, count
    while open_streams:
        for fd, _ in poll.poll(1):
            stream = streams[fd]
            data = stream[0].recv(1 << 16)
            assert data, "a stream was cut"
            now = time.monotonic()
            silence = max(silence, now - stream[2])
            stream[1], stream[2] = (stream[1] + data)[-64:], now
            if stream[1].endswith(b"0\r\n\r\n"):
                assert b"data: [DONE]" in stream[1]
                poll.unregister(fd)
                open_streams -= 1
    for s, *_ in streams.values():
        s.close()
    return time.monotonic() - began, silence


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def row(name, value, unit, limit=None, **more):
    return {"name": name, "value": value, "unit": unit, "limit": limit, **more}


def stream_rows(binary, count, tokens):
    with Server(binary, "--max-num-seqs", count, "--cache-memory", CACHE) as server:
        with Health(server.port) as health:
            seconds, silence = read_streams(server.port, count, tokens)
        memory = server.peak_memory()
    return [
        row(f"{count} streams, longest silence", silence, "s", HEARTBEAT + SWEEP, tokens=tokens, seconds=seconds),
        row(f"{count} streams, tokens of all", count * tokens / seconds, "tokens/s"),
        row(f"{count} streams, peak memory", memory / 1e9, "GB", 2.0),
        row(f"{count} streams, /health p99", 1e3 * percentile(health.times, 0.99), "ms", 50.0, asked=len(health.times),
            p50=1e3 * percentile(health.times, 0.5), max=1e3 * max(health.times)),
    ]  # fmt: skip


FORMS = {
    "regex": {"structured_outputs": {"regex": "[a-z ]{2000}"}},
    "numbers": {"structured_outputs": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 1000}}},
    "records": {"structured_outputs": {"json": {"type": "array", "minItems": 1000, "items": {"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 20}, "on": {"type": "boolean"}, "n": {"type": ["number", "null"]}},
        "required": ["name", "on"], "additionalProperties": False}}}},
}  # fmt: skip


def seconds_per_step(port, batch, tokens, form):
    body = {"prompt": "Once", "max_tokens": tokens, "temperature": 1, "seed": 1, **form}
    with ThreadPoolExecutor(batch) as pool:
        began = time.perf_counter()
        answers = list(pool.map(lambda _: ask(port, "POST", "/v1/completions", body), range(batch)))
        seconds = time.perf_counter() - began
    for answer in answers:
        assert answer["usage"]["completion_tokens"] == tokens, answer
    return seconds / tokens


def mask_rows(binary, batch, tokens, repeats):
    """Steps with masks beside steps without, in turns."""
    cases = {"free": {"ignore_eos": True}, **FORMS}
    taken = {name: [] for name in cases}
    with Server(binary) as server:
        for i in range(repeats + 1):
            for name, form in cases.items():
                seconds = seconds_per_step(server.port, batch, tokens, form)
                if i > 0:  # the first round warms up
                    taken[name].append(seconds)
    free = statistics.median(taken["free"])
    rows = [row(f"step, batch {batch}, free", 1e3 * free, "ms", tokens=tokens, repeats=repeats)]
    for name in FORMS:
        cost = statistics.median(taken[name]) / free - 1
        rows.append(row(f"step, batch {batch}, cost of masks, {name}", 100 * cost, "%", 5.0))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=64, help="of every stream")
    parser.add_argument("--repeats", type=int, default=3, help="of every form; the median counts")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results", help="folder of the result")
    args = parser.parse_args()
    binary = os.environ.get("PERIGEE", "build/perigee")
    load = os.getloadavg()[0]
    rows = stream_rows(binary, args.streams, args.tokens) + mask_rows(binary, 16, 128, args.repeats)
    for r in rows:
        print(f"{r['name']:<45} {r['value']:>10.4g} {r['unit']:<9}", f"at most {r['limit']:g}" if r["limit"] else "")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%F")
    result = {"hardware": f"{cpu}, {os.cpu_count()} threads", "commit": commit, "date": date, "model": MODEL,
              "load_average": load, "rows": rows}  # fmt: skip
    (args.out / f"{date}-cpu-serve-load.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
