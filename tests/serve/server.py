"""Starts `perigee serve` for the tests of this folder. PERIGEE names the binary, PERIGEE_MODEL the model folder."""

import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("PERIGEE", "build-test/perigee")
MODEL = os.environ.get("PERIGEE_MODEL", "models/tiny-k31")

needs_model = pytest.mark.skipif(
    not (ROOT / MODEL / "config.json").is_file(), reason=f"{MODEL}: no model folder there (set PERIGEE_MODEL)"
)


class Server:
    """A running server; `log` holds its standard error so far."""

    def __init__(self, *args, env=None, model=(MODEL,)):
        self.process = subprocess.Popen(
            [BINARY, "serve", *model, "--port", "0", *map(str, args)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.log = ""
        ready = threading.Event()
        self.reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        self.reader.start()
        ready.wait(120)
        match = re.search(r"^serving .* at (https?)://.*:(\d+) ", self.log, re.M)
        assert match, self.log
        self.port = int(match[2])
        self.url = f"{match[1]}://127.0.0.1:{self.port}"

    def _read(self, ready):
        for line in self.process.stderr:
            self.log += line
            if line.startswith("serving "):
                ready.set()
        ready.set()

    def stop(self, signals=(signal.SIGTERM,), timeout=60):
        """The exit status."""
        for one in signals:
            if self.process.poll() is None:
                self.process.send_signal(one)
        status = self.process.wait(timeout)
        self.reader.join(10)
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
