"""Paths and the trace_model runner of the oracle tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN_SEED = 7  # of the weights that tools/oracle/make_hf_goldens.py took
sys.path.insert(0, str(ROOT / "tools"))

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def tool(name):
    """A test tool of the build, or None. PERIGEE_BUILD_DIR names another build folder than build-test."""
    path = ROOT / os.environ.get("PERIGEE_BUILD_DIR", "build-test") / name
    return path if path.exists() else None


@pytest.fixture(scope="session")
def trace_model():
    """run(folder, tokens, out, *flags) -> Trace, by the engine's trace_model."""
    from oracle import trace

    program = tool("trace_model")
    if program is None:
        pytest.skip("trace_model is not built")

    def run(folder, tokens, out, *flags):
        tokens_file = Path(out).with_suffix(".json")
        tokens_file.write_text(json.dumps([int(t) for t in tokens]))
        subprocess.run([program, folder, tokens_file, out, *flags], check=True)
        return trace.load(out)

    return run
