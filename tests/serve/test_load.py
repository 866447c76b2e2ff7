"""Many slow streams at once, over an engine that only counts: the server's own cost."""

import os
import select
import socket
import subprocess
import time

import pytest
from server import ROOT

BINARY = os.environ.get("SCRIPTED_SERVER", "build-test/scripted_server")
STREAMS = 1000


@pytest.fixture
def port():
    # 200 tokens a stream, every stream a token each 30 ms.
    process = subprocess.Popen([BINARY, "0", "200", "30000"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process_port = int(process.stdout.readline())
    yield process_port, process.pid
    process.stdin.close()
    assert process.wait(60) == 0


def rss(pid):
    """Bytes of memory, at most so far."""
    text = open(f"/proc/{pid}/status").read()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def test_a_thousand_streams(port):
    port, pid = port
    body = b'{"prompt": "x", "max_tokens": 200, "stream": true}'
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    streams = {}
    poll = select.epoll()
    for _ in range(STREAMS):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(request)
        s.setblocking(False)
        streams[s.fileno()] = (s, bytearray())
        poll.register(s.fileno(), select.EPOLLIN)
    done, end = 0, time.monotonic() + 120
    while done < STREAMS and time.monotonic() < end:
        for fd, _ in poll.poll(1):
            s, data = streams[fd]
            data += s.recv(65536)
            if data.endswith(b"0\r\n\r\n"):
                done += 1
                poll.unregister(fd)
    assert done == STREAMS
    for s, data in streams.values():
        assert data.startswith(b"HTTP/1.1 200 OK\r\n") and data.count(b'"finish_reason":"length"') == 1 and b"data: [DONE]" in data
        s.close()
    assert rss(pid) < 2e9
