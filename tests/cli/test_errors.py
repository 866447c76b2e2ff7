"""What goes wrong says so in one line: exit status 2 for usage, 1 for everything else."""

import shutil

import pytest
from perigee_cli import MODEL, ROOT, fails, needs_model, run


def test_help_and_version():
    for args in (["--help"], ["generate", "--help"], ["bench", "latency", "--help"], ["--version"]):
        done = run(*args)
        assert done.returncode == 0 and done.stdout and not done.stderr


def test_no_command():
    assert "generate, chat, inspect, plan, eval, replay, bench" in fails(2)
    assert "latency" in fails(2, "bench")


def test_unknown_flag_names_the_nearest():
    assert "did you mean --temperature?" in fails(2, "generate", MODEL, "--prompt", "x", "--temprature", "1")
    assert "did you mean --threads?" in fails(2, "chat", MODEL, "--thread", "1")
    assert "did you mean --input-len?" in fails(2, "bench", "latency", MODEL, "--input-length=3")
    line = fails(2, "generate", MODEL, "--prompt", "x", "--zzzzzzzz")
    assert "--zzzzzzzz" in line and "did you mean" not in line


def test_the_help_that_is_named_exists():
    line = fails(2, "bench", "latency", MODEL, "--zzzzzzzz")
    command = line[line.index("(see perigee ") + len("(see perigee ") : -1].split()
    assert command == ["bench", "latency", "--help"]
    assert run(*command).returncode == 0


@needs_model
def test_a_value_that_an_override_made_wrong_is_not_blamed_on_the_file_alone():
    line = fails(1, "inspect", MODEL, "--override-config", "hidden_size=-4")
    assert "config.json with --override-config: text_config.hidden_size: -4 was found" in line


@needs_model
def test_a_weights_file_is_no_model():
    file = f"{MODEL}/model-00001-of-000002.safetensors"
    assert "give the folder they lie in" in fails(2, "inspect", file)


@pytest.mark.parametrize(
    "command",
    [
        ["eval", MODEL, "--limit", "010x"],
        ["eval", MODEL, "--limit", "-1"],
        ["eval", MODEL, "--limit", ""],
        ["eval", MODEL, "--concurrency", "0x10"],
        ["eval", MODEL, "--show-failures", "1e3"],
        ["bench", "latency", MODEL, "--input-len", "0x10"],
        ["bench", "latency", MODEL, "--output-len", "0"],
        ["bench", "latency", MODEL, "--depth", "-16"],
        ["bench", "latency", MODEL, "--repeats", "1.5"],
        ["bench", "latency", MODEL, "--out", ""],
        ["bench", "kernels", "--seconds", "nan"],
        ["bench", "kernels", "--seconds", "0x1p3"],
        ["bench", "kernels", "--threads", "-1"],
        ["bench", "kernels", "--context", "128.0"],
        ["plan", MODEL, "--gpu-memory", "nan"],
        ["plan", MODEL, "--gpu-memory-utilization", "nan"],
        ["plan", MODEL, "--max-num-seqs", "0x10"],
        ["plan", MODEL, "--tensor-parallel-size", "0x8"],
        ["plan", ""],
        ["inspect", MODEL, "--dummy-seed", "-1"],
        ["inspect", MODEL, "--lanes", "0x8"],
        ["inspect", MODEL, "--lanes", "3"],
    ],
)
def test_every_command_checks_its_numbers(command):
    line = fails(2, *command)
    flag = command[-2] if command[-2].startswith("--") else "MODEL"
    assert flag in line and "--help" in line
    assert command[-1] in line


def test_leading_zeros_are_decimal():
    """CLI11 reads 010 as eight."""
    plan = ["plan", "kimi-k3.1-pro", "--gpu-memory", "288", "--tensor-parallel-size"]
    assert run(*plan, "08").stdout == run(*plan, "8").stdout != ""


def test_unknown_command_names_the_nearest():
    line = fails(2, "genrate", MODEL)
    assert "'genrate'" in line and "did you mean generate?" in line
    assert "did you mean latency?" in fails(2, "bench", "latncy", MODEL)
    line = fails(2, "zzzzzzzz")
    assert "'zzzzzzzz'" in line and "did you mean" not in line


@pytest.mark.parametrize(
    "flags",
    [
        ["--temperature", "-1"],
        ["--top-p", "1.5"],
        ["--thinking", "maybe"],
        ["--max-tokens", "0"],
        ["--logprobs", "21"],
        ["--threads", "-1"],
        ["--seed", "x"],
        ["--seed", "-1"],
        ["--seed", "1.5"],
        ["--seed", "0x10"],
        ["--seed", "18446744073709551616"],
        ["--dummy-seed", "-1"],
        ["--temperature", "nan"],
        ["--temperature", "inf"],
        ["--temperature", "0x1p3"],
        ["--temperature", "1,5"],
        ["--temperature", ""],
        ["--top-p", "nan"],
        ["--repetition-penalty", "0"],
        ["--presence-penalty", "nan"],
        ["--min-p", "nan"],
        ["--top-k", "-1"],
        ["--top-k", "99999999999"],
        ["--max-tokens", "1e3"],
        ["--threads", "2.0"],
        ["--stop", ""],
        ["--tools", ""],
        ["--override-config", ""],
        ["--device", "cuda"],
        ["--override-config", "="],
        ["--override-config", ","],
        ["--override-config", "a.b.c=1"],
        ["--override-config", "hidden_size=1e999"],
    ],
)
def test_values_out_of_range(flags):
    status = 1 if "1e999" in flags[1] else 2  # a config that the override made wrong
    line = fails(status, "generate", MODEL, "--prompt", "x", *flags)
    assert (flags[0] if status == 2 else "hidden_size") in line


def test_flags_given_wrongly():
    generate = ["generate", MODEL, "--prompt", "x"]
    assert "--seed needs a value" in fails(2, *generate, "--seed")
    assert "--seed is given twice" in fails(2, *generate, "--seed", "1", "--seed", "2")
    assert "MODEL is required" in fails(2, "generate")
    assert "give --prompt TEXT" in fails(2, "generate", MODEL)
    assert "'more'" in fails(2, *generate, "more")
    assert "-x" in fails(2, *generate, "-x")
    assert "\\xff" in fails(2, *generate, b"--\xff")


def test_leading_zeros_are_no_octal():
    one, other = (
        run("generate", MODEL, "--prompt", "x", "--temperature", 50, "--max-tokens", 4, "--seed", seed).stdout
        for seed in ("010", "10")
    )
    assert one == other


def test_missing_folder():
    for command in (["generate", "no/such/model", "--prompt", "x"], ["chat", "no/such/model"]):
        assert "no/such/model" in fails(2, *command)
    for command in (["eval", "no/such/model"], ["inspect", "no/such/model"], ["bench", "latency", "no/such/model"]):
        done = run(*command)
        assert done.returncode in (1, 2) and "no/such/model" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_config_name_has_no_tokenizer():
    for command in (["generate", "kimi-k3.1-pro", "--prompt", "x"], ["chat", "kimi-k3.1-pro"]):
        line = fails(2, *command, timeout=20)
        assert "kimi-k3.1-pro" in line and "token" in line


def test_a_model_larger_than_memory():
    line = fails(1, "bench", "latency", "kimi-k3.1-pro", "--load-format", "dummy", timeout=30)
    assert "memory" in line and "GB" in line


@needs_model
class TestWithModel:
    def test_truncated_checkpoint(self, tmp_path):
        copy = tmp_path / "damaged"
        shutil.copytree(ROOT / MODEL, copy, ignore=shutil.ignore_patterns("eval", "*.png"))
        shard = sorted(copy.glob("*.safetensors"))[-1]
        data = shard.read_bytes()
        shard.write_bytes(data[: len(data) // 2])
        line = fails(1, "generate", copy, "--prompt", "x")
        assert shard.name in line

    def test_missing_shard(self, tmp_path):
        copy = tmp_path / "missing"
        shutil.copytree(ROOT / MODEL, copy, ignore=shutil.ignore_patterns("eval", "*.png"))
        shard = sorted(copy.glob("*.safetensors"))[-1]
        shard.unlink()
        assert shard.name in fails(1, "generate", copy, "--prompt", "x")

    def test_missing_tokenizer(self, tmp_path):
        copy = tmp_path / "mute"
        shutil.copytree(ROOT / MODEL, copy, ignore=shutil.ignore_patterns("eval", "*.png", "tiktoken.model"))
        assert "tiktoken.model" in fails(1, "generate", copy, "--prompt", "x")

    def test_unknown_suite(self):
        line = fails(2, "eval", MODEL, "spelling")
        assert "spelling" in line and "arithmetic" in line

    def test_lanes(self):
        line = fails(2, "generate", MODEL, "--prompt", "x", "--lanes", 3)
        assert "--lanes" in line and "3" in line and "16" in line
        line = fails(2, "generate", MODEL, "--prompt", "x", "--lanes", 32)
        assert "lanes that fit: 1, 2" in line

    def test_formats(self):
        line = fails(2, "generate", MODEL, "--prompt", "x", "--kv-cache-dtype", "fp4")
        assert "--kv-cache-dtype" in line and "fp4 " in line and "nvfp4" in line

    def test_tools_files(self, tmp_path):
        assert "missing.json" in fails(2, "generate", MODEL, "--prompt", "x", "--tools", tmp_path / "missing.json")
        for text in ("{", "{}", "[1]", '[{"type": "function"}]'):
            file = tmp_path / "tools.json"
            file.write_text(text)
            assert "tools" in fails(2, "generate", MODEL, "--prompt", "x", "--tools", file)

    def test_long_prompt_is_refused_with_numbers(self):
        line = fails(
            1, "generate", MODEL, "--prompt", "x " * 50, "--override-config", "max_position_embeddings=32"
        )
        assert "32" in line and "tokens" in line
