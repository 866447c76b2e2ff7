"""Tokenizer throughput beside PyPI tiktoken: same text, same ranks, same pattern, one thread each, interleaved in one run,
by the CPU time of that thread, so that a busy machine does not decide the ratio.

    python bench/text/tokenizer_throughput.py [--encode-lines build/encode_lines] [--out FILE]

Prints one JSON object; `value` and `peer_value` are medians in MB/s, `ratio` is ours over tiktoken's.
"""

import argparse
import datetime
import json
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "text"))
from tiktoken_oracle import encoding, guarded, public_ranks, read_ranks, small_ranks, write_folder  # noqa: E402


def english(size):
    """English prose that every Python carries: the documentation strings of its standard library and the licences."""
    import pydoc_data.topics
    parts = list(pydoc_data.topics.topics.values())
    text = "\n".join(parts)
    text = text.encode("ascii", "ignore").decode()
    return (text * (size // len(text) + 1))[:size]


def chinese(size):
    r = random.Random(1)
    common = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经"
    text = "".join(r.choice(common) + ("，" if r.random() < 0.08 else "") for _ in range(size // 3))
    return text


def code(size):
    text = pathlib.Path(statistics.__file__).read_text()
    text = text.encode("ascii", "ignore").decode()
    return (text * (size // len(text) + 1))[:size]


def one_word(size):
    r = random.Random(2)
    return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(size))


def ours_seconds(executable, folder, data, repeats):
    out = subprocess.run([str(executable), str(folder), "--time", str(repeats)], input=data, capture_output=True, check=True)
    rows = [line.split() for line in out.stdout.splitlines()]
    return [float(s) for s, _ in rows], int(rows[0][1])


def peer_seconds(enc, text, repeats):
    seconds = []
    for _ in range(repeats):
        start = time.thread_time()
        count = sum(len(enc.encode_ordinary(part)) for part in guarded(text))
        seconds.append(time.thread_time() - start)
    return seconds, count


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encode-lines", default=ROOT / "build-test" / "encode_lines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--out")
    args = parser.parse_args()
    size = int(args.megabytes * 1e6)

    vocabularies = {"public50k": public_ranks(), "small1k": small_ranks()}
    if (ROOT / "models/tiny-k31/tiktoken.model").exists():
        vocabularies["tiny-k31"] = read_ranks(ROOT / "models/tiny-k31/tiktoken.model")
    texts = {"english": english(size), "code": code(size), "chinese": chinese(size), "one_word_1MB": one_word(1_000_000),
             "one_word_250kB": one_word(250_000), "spaces_1MB": " " * 1_000_000, "spaces_250kB": " " * 250_000}
    rows = []
    for vocabulary, ranks in vocabularies.items():
        enc = encoding(ranks)
        with tempfile.TemporaryDirectory() as folder:
            write_folder(pathlib.Path(folder), ranks)
            for name, text in texts.items():
                data = text.encode()
                ours, peer = [], []
                for _ in range(args.rounds):
                    seconds, count = ours_seconds(args.encode_lines, folder, data, 2)
                    ours.append(seconds[1])
                    seconds, peer_count = peer_seconds(enc, text, 1)
                    peer += seconds
                    assert count == peer_count
                value, peer_value = (len(data) / statistics.median(s) / 1e6 for s in (ours, peer))
                rows.append({"name": f"tokenize {name} {vocabulary}", "value": round(value, 2), "unit": "MB/s",
                             "peer": "tiktoken", "peer_value": round(peer_value, 2), "ratio": round(value / peer_value, 2),
                             "bytes": len(data), "tokens": count})
                print(json.dumps(rows[-1]), file=sys.stderr)
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {"hardware": cpu_name(), "commit": commit, "date": datetime.date.today().isoformat(), "rows": rows}
    print(json.dumps(result))
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
