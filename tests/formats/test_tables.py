"""tables.h is what make_tables.py writes: the goldens of the C++ tests come from the definitions, and from nothing else."""

import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent


def test_tables_are_those_of_the_script():
    written = subprocess.run([sys.executable, FOLDER / "make_tables.py"], check=True, capture_output=True, text=True).stdout
    assert written == (FOLDER / "tables.h").read_text()
