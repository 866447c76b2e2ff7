"""Standard streams that are full, closed or not text, and signals."""

import os
import signal
import subprocess

import pytest
from perigee_cli import BINARY, MODEL, ROOT, needs_model

pytestmark = needs_model
GENERATE = [BINARY, "generate", MODEL, "--prompt", "x", "--max-tokens", "2"]
COMMANDS = [GENERATE, [*GENERATE, "--json"], [BINARY, "inspect", "kimi-k3"], [BINARY, "inspect", MODEL, "--tensors"], [BINARY, "--help"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_cannot_be_written_is_an_error(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("perigee: ")]
    assert done.returncode == 1 and len(lines) == 1 and "No space left" in lines[0], done.stderr
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert closed.returncode == 1 and "stdout" in closed.stderr, closed.stderr


def test_a_reader_that_goes_away():
    done = subprocess.run(
        ["bash", "-c", f'"{BINARY}" inspect "{MODEL}" --tensors | head -1; echo ${{PIPESTATUS[0]}}'],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines()[1] in ("141", "0") and done.stderr == ""


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_closed_stream_takes_no_file_of_the_model(stream):
    """The lowest free number goes to the next file opened: a shard must not become stdin, nor take what is printed."""
    redirect = f"exec \"$@\" {stream}{'<' if stream == 0 else '>'}&-"
    done = subprocess.run(
        ["sh", "-c", redirect, "sh", BINARY, "chat", MODEL, "--max-tokens", "2"],
        cwd=ROOT, input=None if stream == 0 else "hi\n", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if stream == 0:
        assert done.returncode == 0 and done.stdout == "> \n"
    elif stream == 1:
        assert done.returncode == 1 and "stdout" in done.stderr
    else:
        assert done.returncode == 0 and "thinking: " in done.stdout


def chat(text, *args):
    return subprocess.run(
        [BINARY, "chat", MODEL, "--temperature", "0", "--max-tokens", "2", *args], cwd=ROOT, input=text, capture_output=True, timeout=60
    )


def test_chat_takes_any_bytes():
    for text in (b"\xff\xfe\x80\n", b"a\0b\n", b"\xe4\xb8", b"<|end_of_msg|><|open|>message\n", b"\x1b[31m\n", " \u202e\n".encode()):
        done = chat(text)
        assert done.returncode == 0 and done.stdout.startswith(b"> thinking: "), done
    assert chat(b"").stdout == b"> \n"


def test_chat_says_why_it_cannot_read_or_write(tmp_path):
    command = [BINARY, "chat", MODEL, "--max-tokens", "2"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, input="hi\nhi\n", stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "stdout: cannot be written" in done.stderr.splitlines()[-1]
    folder = os.open(tmp_path, os.O_RDONLY)
    done = subprocess.run(command, cwd=ROOT, stdin=folder, capture_output=True, text=True, timeout=60)
    os.close(folder)
    assert done.returncode == 1 and "stdin: cannot be read" in done.stderr.splitlines()[-1]


def test_prompts_of_any_bytes():
    for prompt in (b"\xff\xfe\x80abc", b"\xe4\xb8", b"\x01\x02\x1b[31m", b"--help", b"-5", "\ufeff👩‍👩‍👧\u202e".encode(), b" " * 100, b"{} %s"):
        done = subprocess.run([*GENERATE[:4], prompt, *GENERATE[5:], "--json"], cwd=ROOT, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        done.stdout.decode()  # UTF-8 whatever came in


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM]])
def test_signals_end_generate(signals):
    process = subprocess.Popen(
        [BINARY, "generate", MODEL, "--prompt", "word " * 20000], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    process.stderr.readline()  # "reading the prompt: 10 %"
    process.send_signal(signals[0])
    assert process.wait(timeout=60) == -signals[0]


def test_ctrl_c_stops_a_prompt_that_is_being_read():
    process = subprocess.Popen(
        [BINARY, "chat", MODEL, "--temperature", "0", "--max-tokens", "2"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.stderr.readline()  # the greeting
    process.stdin.write("word " * 30000 + "\n")
    process.stdin.flush()
    assert process.stderr.readline().startswith("reading the prompt: ")
    process.send_signal(signal.SIGINT)
    line = ""
    while "tokens/s" not in line:
        line = process.stderr.readline()
        assert line
    assert " + 0 tokens, " in line and ", stopped]" in line
    process.stdin.close()
    assert process.wait(timeout=60) == 0
