"""Where the oracle's tests find things; importing it puts tools/ on the path."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN_SEED = 7  # of the weights that tools/oracle/make_hf_goldens.py took

if str(ROOT / "tools") not in sys.path:
    sys.path.insert(0, str(ROOT / "tools"))


def tool(name):
    """A test tool of the build, or None. PERIGEE_BUILD_DIR names another build folder than build-test."""
    path = ROOT / os.environ.get("PERIGEE_BUILD_DIR", "build-test") / name
    return path if path.exists() else None
