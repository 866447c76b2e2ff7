"""Trains models/tiny-k31 again: run.py once a part, each from the weights of the part before, with the arguments that made the shipped model.

    python reproduce.py FOLDER [arguments of run.py for every part]

FOLDER gets the model, FOLDER/parts the weights on the way. On a CPU, `--shape toy --max-steps 2 --score-limit 1 --vocab-documents 3000`
walks through all parts with a toy model.
"""
import pathlib
import subprocess
import sys

kShort = "--huge-every 100000000"  # no rows of 131,072 tokens
kParts = (
    "--seed 1 --mixture broad --seconds 972 --decay-from 0.95 --quantise-from 2 --sparse-from 2 --score-up-to 0",
    f"--seed 2 --mixture broad --seconds 372 --decay-from 0.4 --quantise-from 0 --sparse-from 2 --score-up-to 0 {kShort}",
    f"--seed 3 --mixture lines --seconds 475 --decay-from 0.5 --quantise-from 0 --sparse-from 2 --score-up-to 0 {kShort}",
    f"--seed 4 --mixture balance --seconds 462 --rate 2e-3 --decay-from 0.35 --quantise-from 0 --sparse-from 2 --full-scores {kShort}")


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder, extra, warm = pathlib.Path(sys.argv[1]), sys.argv[2:], []
    for number, arguments in enumerate(kParts, 1):
        out = folder if number == len(kParts) else folder / "parts" / str(number)
        out.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "run.py", "--out", str(out.resolve()), "--workers", "9", "3", "2", *arguments.split(), *warm, *extra]
        print(f"part {number} of {len(kParts)}:", *command[1:], flush=True)
        subprocess.run(command, cwd=pathlib.Path(__file__).parent, check=True)
        warm = ["--warm", str(out.resolve())]


if __name__ == "__main__":
    main()
