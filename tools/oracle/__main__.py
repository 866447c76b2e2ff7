"""python -m oracle MODEL_DIR TOKENS.json OUT.safetensors [--given TRACE] [--reference]: run, write a trace."""

import argparse
import json
from pathlib import Path

from . import bf16_reference, model, trace


def main():
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("tokens", help="a JSON list of token ids")
    parser.add_argument("out")
    parser.add_argument("--given", help="a trace whose selected keys and experts are used")
    parser.add_argument("--reference", action="store_true", help="an eager bf16 run instead of fp64")
    args = parser.parse_args()
    run = bf16_reference.run if args.reference else model.run
    given = trace.load(args.given) if args.given else None
    trace.save(args.out, run(args.model, json.loads(Path(args.tokens).read_text()), given))


main()
