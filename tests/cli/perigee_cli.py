"""Runs the perigee binary for the tests of this folder. PERIGEE names it, PERIGEE_MODEL the model folder."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("PERIGEE", "build-test/perigee")
MODEL = os.environ.get("PERIGEE_MODEL", "models/tiny-k31")

needs_model = pytest.mark.skipif(
    not (ROOT / MODEL / "config.json").is_file(), reason=f"{MODEL}: no model folder there (set PERIGEE_MODEL)"
)


def run(*args, timeout=120):
    """The finished process, with text streams."""
    args = [a if isinstance(a, bytes) else str(a) for a in args]
    return subprocess.run([BINARY, *args], cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def run_json(*args, timeout=120):
    """The one JSON object on stdout; fails when there is anything else."""
    done = run(*args, "--json", timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("}\n") and done.stdout.count("\n") == 1, done.stdout
    return json.loads(done.stdout)


def generate(prompt, *args):
    return run_json("generate", MODEL, "--prompt", prompt, *args)


def fails(status, *args, timeout=60):
    """The single line on stderr of a command that must fail."""
    done = run(*args, timeout=timeout)
    assert done.returncode == status, (done.returncode, done.stderr)
    assert done.stdout == "", done.stdout
    # On a busy machine loading takes long enough to be told about.
    lines = [line for line in done.stderr.splitlines() if not re.search(r": \d+ %$", line)]
    assert len(lines) == 1, lines
    return lines[0]
