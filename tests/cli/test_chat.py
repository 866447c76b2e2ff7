"""perigee chat, through a pipe and through a terminal."""

import os
import pty
import select
import signal
import subprocess
import time

from perigee_cli import BINARY, MODEL, ROOT, needs_model

pytestmark = needs_model
DIM, NORMAL = "\033[2m", "\033[0m"


def test_through_a_pipe():
    done = subprocess.run(
        [BINARY, "chat", MODEL, "--temperature", "0"],
        cwd=ROOT, input="What is 17 + 25?\n\nWhat is 3 + 4?\n", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\033" not in done.stdout
    first, second = done.stdout.split("> ")[1], done.stdout.split("> ")[3]
    assert first.startswith("thinking: ") and first.endswith("\n42\n")
    assert second.endswith("\n7\n")
    assert "tokens/s" in done.stderr and "stopped" not in done.stderr


class Terminal:
    """perigee chat behind a pseudo-terminal."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execv(BINARY, [BINARY, "chat", MODEL, *args])
        self.text = ""

    def read_until(self, wanted, timeout=30):
        """What comes up to and with `wanted`."""
        end = time.monotonic() + timeout
        while wanted not in self.text:
            assert time.monotonic() < end, f"no {wanted!r} in {self.text!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:  # the other side is closed
                    data = b""
                assert data, f"ended before {wanted!r}: {self.text!r}"
                self.text += data.decode(errors="replace")
        at = self.text.index(wanted) + len(wanted)
        got, self.text = self.text[:at], self.text[at:]
        return got

    def send(self, text):
        os.write(self.fd, text.encode())

    def exit_status(self, timeout=10):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("the program does not end")


def test_thinking_is_dimmed_and_ctrl_d_ends():
    chat = Terminal("--temperature", "0")
    chat.read_until("Ctrl-D ends.")
    chat.read_until("> ")
    chat.send("What is 17 + 25?\n")
    thinking = chat.read_until(NORMAL)
    assert len(thinking.split(DIM)) == 2 and thinking.split(DIM)[1].strip(NORMAL).strip()
    chat.read_until("42")
    chat.read_until("tokens/s")
    chat.read_until("> ")
    chat.send("\x04")
    assert chat.exit_status() == 0


def test_ctrl_c_stops_the_answer_and_the_program_goes_on():
    # A hot answer to a sampled question goes on for long.
    chat = Terminal("--temperature", "3", "--max-tokens", "4000")
    chat.read_until("> ")
    chat.send("Tell me something.\n")
    chat.read_until(DIM)
    chat.send("\x03")
    chat.read_until(", stopped]")
    chat.read_until("> ")
    chat.send("Something else.\n")
    chat.read_until(DIM)
    chat.send("\x03")
    chat.read_until(", stopped]")
    chat.read_until("> ")
    chat.send("\x03")  # at the prompt it ends the program
    assert chat.exit_status() == 130
