"""What the cache formats cost: scores of a model's suites under every pair of formats of latents and index keys, beside bf16.

    python bench/eval_formats.py [--perigee build/perigee] [--model models/tiny-k31] [--limit N] [--out FILE]

Suites of long documents run under the two extreme pairs alone. The file is written after every pair; with one that is already
there, pairs in it are not run again. The last lines name the worst loss of every pair in points of accuracy.
"""

import argparse
import datetime
import json
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
LATENTS, INDEX_KEYS = ("bf16", "fp8", "nvfp4"), ("bf16", "fp8", "mxfp4")
PLAIN, SMALLEST = ("bf16", "bf16"), ("nvfp4", "mxfp4")
LONG = ("needle-16k", "needle-32k", "needle-64k", "needle-128k")


def pairs():
    """The plain pair and the smallest first, then what lies between."""
    between = [(latent, key) for latent in LATENTS for key in INDEX_KEYS if (latent, key) not in (PLAIN, SMALLEST)]
    return [PLAIN, SMALLEST, *between]


def score(args, pair, suites):
    command = [args.perigee, "eval", args.model, *suites, "--json", "--device", args.device, "--kv-cache-dtype", pair[0], "--index-cache-dtype", pair[1]]
    if args.limit:
        command += ["--limit", str(args.limit)]
    if args.threads:
        command += ["--threads", str(args.threads)]
    out = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {"latents": pair[0], "index_keys": pair[1], "numerics": out["numerics"], "suites": out["suites"]}


def losses(plain, run):
    """Points of accuracy lost against the plain pair: suite -> points."""
    base = {s["name"]: s["accuracy"] for s in plain["suites"]}
    return {s["name"]: round(100 * (base[s["name"]] - s["accuracy"]), 2) for s in run["suites"] if s["name"] in base}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--perigee", default="build/perigee")
    p.add_argument("--model", default="models/tiny-k31")
    p.add_argument("--suites", nargs="*", help="all of the model's unless named")
    p.add_argument("--limit", type=int, help="only the first questions of each suite")
    p.add_argument("--threads", type=int)
    p.add_argument("--device", default="cpu", help="cpu or cuda")
    p.add_argument("--pairs", type=int, help="only the first pairs: plain, smallest, then what lies between")
    p.add_argument("--out", type=pathlib.Path)
    args = p.parse_args()
    names = args.suites or sorted(f.stem for f in (ROOT / args.model / "eval").glob("*.jsonl"))
    date = datetime.date.today().isoformat()
    out = args.out or ROOT / "bench" / "results" / f"{date}-{args.device}-eval-formats-{pathlib.Path(args.model).name}.json"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    record = json.loads(out.read_text()) if out.exists() else {
        "hardware": platform.processor() or platform.machine(), "device": args.device, "commit": commit, "date": date, "model": args.model, "limit": args.limit, "runs": []}
    for pair in pairs()[: args.pairs]:
        if any((r["latents"], r["index_keys"]) == pair for r in record["runs"]):
            continue
        chosen = [n for n in names if pair in (PLAIN, SMALLEST) or n not in LONG]
        if not chosen:
            continue
        record["runs"].append(score(args, pair, chosen))
        out.write_text(json.dumps(record, indent=1) + "\n")
    plain = record["runs"][0]
    for run in record["runs"][1:]:
        lost = losses(plain, run)
        worst = max(lost, key=lost.get)
        print(f"latents {run['latents']:<6} index keys {run['index_keys']:<6} worst loss {lost[worst]:5.2f} points ({worst})")


if __name__ == "__main__":
    main()
