"""The runner of the engine's trace_model."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from oracle_paths import tool

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy is not yet imported; the sums are small


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
