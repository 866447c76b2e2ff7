"""schemathesis on our own openapi.json: whatever it makes up, the answers are those that the file promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from server import Server, needs_model

pytest.importorskip("schemathesis")
CONFIG = Path(__file__).resolve().with_name("schemathesis.toml")


@needs_model
def test_promises(tmp_path):
    # A short context, so that answers are short whatever a request leaves out.
    with Server("--max-model-len", "128", "--disable-access-log") as server:
        command = [sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", CONFIG, "run", server.url + "/openapi.json"]
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "20", "--seed", "1"]
        command += ["--generation-database", "none", "--request-timeout", "120"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stdout[-20000:] + done.stderr
        tested = re.search(r"Tested: (\d+)", done.stdout)
        assert tested and int(tested[1]) > 10, done.stdout
        assert server.stop() == 0
