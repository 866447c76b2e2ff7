"""What the README and docs/howto/serve-a-model.md tell people to type, as it stands there but for the port."""

import json
import re
import subprocess
import sys

import pytest
from server import ROOT, needs_model

pytestmark = needs_model
PAGES = ["README.md", "docs/howto/serve-a-model.md"]


def blocks(page, word):
    """Blocks of code that hold the word."""
    found = [block for block in re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S) if word in block]
    assert found, (page, word)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_curl(server, page):
    (block,) = blocks(page, "curl ")
    command = block[block.index("curl ") : block.index("}]}'") + len("}]}'")].replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "42", done


@pytest.mark.parametrize("page", PAGES)
def test_sdk(server, page):
    pytest.importorskip("openai")
    (block,) = blocks(page, "OpenAI(")
    program = block.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "42", done
