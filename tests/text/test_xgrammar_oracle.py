"""Our grammars and xgrammar's take the same texts: random schemas, regular expressions and EBNF grammars.

    PERIGEE_ORACLE_FORMS=20000 python -m pytest tests/text/test_xgrammar_oracle.py

random_forms.py lists what is left out, since the two differ there on purpose.
"""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

from random_forms import Expressions, Grammars, Schemas
from xgrammar_oracle import XGrammar

ROOT = Path(__file__).resolve().parents[2]
LINES = os.environ.get("GRAMMAR_LINES", "build-test/grammar_lines")
FORMS = int(os.environ.get("PERIGEE_ORACLE_FORMS", "400"))
TEXTS = 12
pytestmark = pytest.mark.skipif(importlib.util.find_spec("xgrammar") is None, reason="xgrammar is not installed")


@pytest.mark.parametrize("forms", [Schemas, Expressions, Grammars])
def test_they_take_the_same(forms):
    oracle, made = XGrammar(), forms(20261130)
    ours = subprocess.Popen([LINES], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    taken = refused = outgrown = 0
    for _ in range(FORMS):
        kind, source, texts = made.case(TEXTS)
        ours.stdin.write(json.dumps({"kind": kind, "source": source, "texts": texts}) + "\n")
        ours.stdin.flush()
        answer = json.loads(ours.stdout.readline())
        if "ways to go on" in answer.get("error", ""):
            outgrown += 1
            continue
        assert "error" not in answer, (source, answer)
        compiled = oracle.compile(kind, source)
        for text, takes in zip(texts, answer["takes"], strict=True):
            assert takes == oracle.takes(compiled, text), (source, text, takes)
            taken, refused = taken + takes, refused + (not takes)
    ours.stdin.close()
    assert ours.wait(10) == 0
    assert min(taken, refused) > FORMS * TEXTS / 5  # a test of both
    assert outgrown <= (FORMS / 20 if forms is Grammars else 0)
