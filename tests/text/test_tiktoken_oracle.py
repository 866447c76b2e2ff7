"""The C++ tokenizer gives tiktoken's ids, on random and adversarial strings, long inputs, and bytes that are not UTF-8.

    python -m pytest tests/text/test_tiktoken_oracle.py [--count 200000] [--encode-lines build-test/encode_lines]
"""

import os
import random

import pytest

from adversarial_strings import Strings, long_strings
from tiktoken_oracle import (ROOT, EncodeLines, assigned_code_points, encoding, oracle_ids, pair_ranks, public_ranks,
                             read_ranks, small_ranks, write_folder)

DEMO = ROOT / "models" / "tiny-k31"


@pytest.fixture(scope="session")
def executable(request):
    return request.config.getoption("--encode-lines") or ROOT / "build-test" / "encode_lines"


@pytest.fixture(scope="session")
def count(request):
    return request.config.getoption("--count") or int(os.environ.get("PERIGEE_ORACLE_COUNT", "20000"))


@pytest.fixture(scope="session", params=["pairs", "small", "public", "demo"])
def pair(request, executable, tmp_path_factory):
    """(our tokenizer, tiktoken) on one vocabulary."""
    if request.param == "demo":
        if not (DEMO / "tiktoken.model").exists():
            pytest.skip("models/tiny-k31 is not in this checkout")
        folder, ranks = DEMO, read_ranks(DEMO / "tiktoken.model")
    else:
        ranks = {"pairs": pair_ranks, "small": small_ranks, "public": public_ranks}[request.param]()
        folder = write_folder(tmp_path_factory.mktemp(request.param), ranks)
    ours = EncodeLines(executable, folder)
    yield ours, encoding(ranks)
    ours.close()


@pytest.fixture(scope="session")
def points(executable):
    points = assigned_code_points(executable)
    assert 280_000 < len(points) < 300_000
    return points


def assert_same(ours, enc, text):
    got, want = ours.ids(text.encode()), oracle_ids(enc, text)
    if got != want:
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        around = [enc.decode_single_token_bytes(i) for i in want[max(0, at - 3):at + 5]]
        mine = [enc.decode_single_token_bytes(i) for i in got[max(0, at - 3):at + 5]]
        raise AssertionError(f"ids differ at {at}: tiktoken {around}, ours {mine}; text {text[:200]!r} ({len(text)} characters)")


def test_random_and_adversarial_strings(pair, points, count):
    strings = Strings(points, seed=20261130)
    for _ in range(count):
        assert_same(*pair, strings.next())


def test_every_assigned_code_point_in_five_contexts(pair, points):
    for begin in range(0, len(points), 64):
        block = [chr(p) for p in points[begin:begin + 64]]
        for context in ("{}", "a{}", " {}A", "{}\n", "中{}1"):
            assert_same(*pair, "".join(context.format(c) for c in block))


def test_long_inputs(pair):
    for text in long_strings():
        assert_same(*pair, text)


def test_empty(pair):
    assert_same(*pair, "")


def test_ill_formed_bytes_count_as_replacement_characters(pair):
    ours, enc = pair
    r = random.Random(3)
    alphabet = [b"a", b" ", b"\xe4\xb8\xad", b"\xf0\x9f\x99\x82", b"\xc3", b"\xe4\xb8", b"\xf0\x9f", b"\x80", b"\xff", b"\xed\xa0\x80",
                b"\xc0\x80", b"\xf4\x90\x80\x80", b"\n"]
    for _ in range(3000):
        data = b"".join(r.choice(alphabet) for _ in range(r.randint(1, 12)))
        assert ours.ids(data) == oracle_ids(enc, data.decode("utf-8", "replace")), data
