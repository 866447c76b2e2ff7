"""perigee bench serve: its JSON says what a server was asked, and its plot is a picture of the same."""

import json
import subprocess
import xml.etree.ElementTree as xml

from server import BINARY, ROOT, needs_model

pytestmark = needs_model


def bench(server, *args):
    return subprocess.run(
        [BINARY, "bench", "serve", "--base-url", server.url, "--num-prompts", "12", "--random-input-len", "8",
         "--random-output-len", "6", "--ignore-eos", "--json", *map(str, args)],
        cwd=ROOT, capture_output=True, text=True, timeout=120)  # fmt: skip


def test_the_plot_beside_the_json(server, tmp_path):
    out = tmp_path / "load.json"
    done = bench(server, "--out", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["completed"] == 12 and report["total_output_tokens"] == 72
    plot = xml.parse(tmp_path / "load.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    words = [text.text for text in plot.iter(svg + "text")]
    assert {"TTFT (12)", "TPOT (12)", "E2EL (12)"} <= set(words)
    assert [word for word in words if word.startswith("ITL (")]  # between pieces: text that is held back makes fewer
    for line in plot.iter(svg + "polyline"):
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        assert points == sorted(points, key=lambda p: (p[0], -p[1])) and points  # shares only grow
        assert points[-1][1] == min(y for _, y in points) == 48.0  # 100 %
        assert all(60 <= x <= 700 and 48 <= y <= 348 for x, y in points)


def test_no_room_for_the_plot(server, tmp_path):
    assert "ends in .json" in bench(server, "--out", tmp_path / "load.svg").stderr
    assert "--out" in bench(server, "--out", "/nowhere/load.json").stderr
