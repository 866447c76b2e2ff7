"""perigee inspect and eval: their JSON, and the numbers that are known."""

import json
import re
from pathlib import Path

import pytest
from perigee_cli import MODEL, needs_model, run, run_json


@pytest.mark.parametrize("name, tensors", [("kimi-k3.1-pro", 497340), ("kimi-k3", 497220)])
def test_inspect_counts(name, tensors):
    out = run_json("inspect", name)
    assert out["tensors"] == tensors
    assert 2.75e12 <= out["parameters"] <= 2.82e12
    assert abs(out["active_parameters"] / 104e9 - 1) < 0.01
    assert out["bytes"]["total"] == sum(v for k, v in out["bytes"].items() if k != "total")
    assert out["architecture"]
    assert re.fullmatch("[0-9a-f]{16}", out["numerics"]["digest"])


@needs_model
def test_inspect_and_generate_agree_on_the_identity():
    generated = run_json("generate", MODEL, "--prompt", "x", "--max-tokens", 1)
    assert run_json("inspect", MODEL)["numerics"]["digest"] == generated["numerics"]


@needs_model
def test_eval_scores():
    out = run_json("eval", MODEL, "arithmetic", "tools", "json", "--limit", 8)
    assert out["model"] == MODEL
    assert [s["name"] for s in out["suites"]] == ["arithmetic", "tools", "json"]
    for suite in out["suites"]:
        assert suite["n"] == 8
        assert suite["accuracy"] >= 0.95, suite


@needs_model
def test_eval_control_fails():
    out = run_json("eval", MODEL, "arithmetic", "json", "--limit", 8, "--control", "swap")
    assert all(s["accuracy"] < 0.3 for s in out["suites"]), out


def test_overrides_name_the_nearest():
    done = run("inspect", "kimi-k3", "--override-config", "num_hiden_layers=4")
    assert done.returncode == 2 and "num_hidden_layers" in done.stderr


def write_suite(tmp_path, name, lines):
    """A folder that shares the demo model's files and holds one suite of its own."""
    folder = tmp_path / "model"
    (folder / "eval").mkdir(parents=True)
    for file in Path(MODEL).resolve().iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file)
    (folder / "eval" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def question(text, answer, **more):
    return {"messages": [{"role": "user", "content": text}], "answer": {"type": "text", "text": answer}, "max_tokens": 160, **more}


@needs_model
def test_eval_of_questions_about_a_shared_document(tmp_path):
    codes = {"Anna's lamp": "48213", "Oslo horse": "90417", "red chair": "15562"}
    text = " ".join(f"The code of {k} is {v}." for k, v in codes.items())
    lines = [{"document": "d", "text": text}] + [question(f"What is the code of {k}?", v, document="d") for k, v in codes.items()]
    folder = write_suite(tmp_path, "codes", lines)
    assert run_json("eval", folder, "codes")["suites"][0]["accuracy"] == 1.0
    assert run_json("eval", folder, "codes", "--control", "swap")["suites"][0]["accuracy"] == 0.0


@needs_model
def test_eval_of_several_turns(tmp_path):
    later = {"messages": [{"role": "user", "content": "What is 8 + 9?"}], "answer": {"type": "text", "text": "17"}}
    wrong = later | {"answer": {"type": "text", "text": "18"}}
    folder = write_suite(tmp_path, "turns", [question("What is 17 + 25?", "42", then=[later]), question("What is 17 + 25?", "42", then=[wrong])])
    suite = run_json("eval", folder, "turns")["suites"][0]
    assert (suite["n"], suite["accuracy"]) == (2, 0.5)


@needs_model
@pytest.mark.parametrize(
    "line, message",
    [
        ({"document": "d", "messages": [{"role": "user", "content": "?"}], "answer": {"type": "text", "text": ""}}, "no line before it holds document 'd'"),
        (question("?", "", then=3), '"then" must be an array'),
        (question("?", "", then=[{}]), 'needs "messages" (array) and "answer" (object)'),
    ],
)
def test_eval_names_a_bad_line(tmp_path, line, message):
    done = run("eval", write_suite(tmp_path, "bad", [line]), "bad")
    assert done.returncode != 0 and "bad.jsonl:1" in done.stderr and message in done.stderr


@needs_model
def test_eval_controls_break_what_a_suite_needs():
    """Random keys lose the asked line; a state that is zeroed loses the last of many. Sums need neither: they are short."""
    out = run_json("eval", MODEL, "recall", "arithmetic", "--limit", 4, "--index", "random")
    assert out["index"] == "random" and [s["accuracy"] for s in out["suites"]] == [0.0, 1.0]
    assert run_json("eval", MODEL, "state", "--limit", 8)["suites"][0]["accuracy"] >= 0.875
    out = run_json("eval", MODEL, "state", "arithmetic", "--limit", 16, "--poison", "state")
    state, arithmetic = (s["accuracy"] for s in out["suites"])
    assert out["poison"] == "state" and state <= 0.5 and arithmetic == 1.0
