"""Files that are damaged, missing, of the wrong kind or out of reach: one line that names the file and what to do."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from perigee_cli import BINARY, MODEL, ROOT, fails, needs_model, run

pytestmark = needs_model
SHARD = "model-00002-of-000002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path):
    """Makes a copy of the model folder (by links) with some files replaced: bytes, None to leave out, or Path to link to."""

    def make(replaced):
        folder = tmp_path / "model"
        folder.mkdir()
        for file in (ROOT / MODEL).iterdir():
            if file.is_file() and file.name not in replaced:
                (folder / file.name).symlink_to(file)
        for name, content in replaced.items():
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            elif isinstance(content, Path):
                (folder / name).symlink_to(content)
        return folder

    return make


def generate(folder, status=1):
    return fails(status, "generate", folder, "--prompt", "x", "--max-tokens", 2)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "generation_config.json", INDEX])
@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'{"a":', b"\xff\xfe\x00", b"[" * 5000, b'{"a":1} x'])
def test_json_files(model, file, content):
    line = generate(model({file: content}))
    assert file in line and any(word in line for word in ("JSON", "weight_map"))


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "generation_config.json", "tiktoken.model", INDEX, SHARD])
def test_a_folder_in_place_of_a_file(model, tmp_path, file):
    line = generate(model({file: tmp_path}))
    assert file in line and "directory" in line


@pytest.mark.parametrize("file", ["config.json", "tiktoken.model", SHARD])
def test_a_dangling_link(model, file):
    assert file in generate(model({file: Path("/nonexistent/file")}))


def test_endless_files(model):
    for file in ("config.json", "tiktoken.model"):
        folder = model({file: Path("/dev/zero")})
        assert file in generate(folder) and "too many" in generate(folder)
        shutil.rmtree(folder)
    assert "/dev/zero" in fails(2, "generate", MODEL, "--prompt", "x", "--tools", "/dev/zero")
    assert "/dev/zero" in fails(1, "inspect", "/dev/zero")


@pytest.mark.parametrize(
    "content, says",
    [
        (b"", "0 bytes"),
        (b"\x10\0\0\0\0\0\0\0", "cut"),
        (b"<html>404 not found</html>" * 40, "fetch it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (bytes(range(256)) * 64, "not safetensors"),
    ],
)
def test_shards_that_are_none(model, content, says):
    line = generate(model({SHARD: content}))
    assert SHARD in line and says in line


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.999])
def test_cut_and_grown_shards(model, keep):
    whole = (ROOT / MODEL / SHARD).read_bytes()
    folder = model({SHARD: whole[: int(len(whole) * keep)]})
    line = generate(folder)
    assert SHARD in line and "tensor " in line and "fetch it again" in line
    (folder / SHARD).write_bytes(whole + b"x")
    assert "1 bytes trail" in generate(folder)


def test_tensors_that_do_not_match_are_listed_on_one_line(model):
    config = json.loads((ROOT / MODEL / "config.json").read_text())
    config["text_config"]["linear_attn_config"]["use_full_rank_gate"] ^= True
    line = generate(model({"config.json": json.dumps(config).encode()}))
    assert "missing: " in line and "unexpected: " in line and "g_proj" in line and "more" in line


@pytest.mark.parametrize(
    "text, field",
    [
        ('{"temperature": -1}', "temperature"),
        ('{"temperature": 1E300}', "temperature"),
        ('{"temperature": "hot"}', "temperature"),
        ('{"top_p": 7}', "top_p"),
        ('{"top_k": -5}', "top_k"),
        ('{"top_k": 1E300}', "top_k"),
        ('{"eos_token_id": "x"}', "eos_token_id"),
        ('{"eos_token_id": 1000000}', "eos_token_id"),
    ],
)
def test_generation_config(model, text, field):
    line = generate(model({"generation_config.json": text.encode()}))
    assert "generation_config.json" in line and field in line and text.split(": ")[1].rstrip("}")[:2] in line


def test_a_tokenizer_of_another_checkpoint(model):
    lines = (ROOT / MODEL / "tiktoken.model").read_text().splitlines(keepends=True)
    for pieces in (lines[:-300], lines + [f"AAAAAAAAAAAA {len(lines)}\n"]):
        folder = model({"tiktoken.model": "".join(pieces).encode(), "tokenizer_config.json": None})
        line = generate(folder)
        assert "tiktoken.model" in line and str(len(pieces) + 256) in line and "4096" in line
        shutil.rmtree(folder)


@pytest.mark.parametrize("content", [b"", b"garbage", b"AAAA 0\n", b"AA== 99999999999999999999\n", b"\xff\xff 0\n"])
def test_vocabularies(model, content):
    assert "tiktoken.model" in generate(model({"tiktoken.model": content}))


def test_eval_suites(model, tmp_path):
    folder = model({})
    (folder / "eval").mkdir()
    suite = folder / "eval" / "mine.jsonl"
    for content in (b"", b"{", b"[]\n", b'{"messages": []}\n', b'{"messages": 5, "answer": {}}\n', b"\xff\n"):
        suite.write_bytes(content)
        assert "mine.jsonl" in fails(1, "eval", folder)
    suite.unlink()
    suite.mkdir()
    assert "mine.jsonl" in fails(1, "eval", folder)


@pytest.fixture
def nobody_reads():
    """A copy of the model that this process, or the user it becomes, may not read; and how to become that user."""
    base = Path(tempfile.mkdtemp(prefix="perigee-private-"))
    base.chmod(0o755)
    folder = base / "model"
    shutil.copytree(ROOT / MODEL, folder, ignore=shutil.ignore_patterns("eval", "*.png"))
    binary = base / "perigee"
    shutil.copy(ROOT / BINARY, binary)
    binary.chmod(0o755)

    def generate_as_nobody():
        user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run(
            [binary, "generate", folder, "--prompt", "x", "--max-tokens", "2"],
            cwd="/", capture_output=True, text=True, timeout=60, **user,
        )  # fmt: skip
        return done.returncode, done.stderr.splitlines()

    yield folder, generate_as_nobody
    folder.chmod(0o755)
    shutil.rmtree(base)


def test_files_and_folders_without_permission(nobody_reads):
    folder, generate_as_nobody = nobody_reads
    for file in ("config.json", "tiktoken.model", "generation_config.json", SHARD):
        (folder / file).chmod(0)
        status, lines = generate_as_nobody()
        assert status == 1 and len(lines) == 1 and file in lines[0] and "Permission denied" in lines[0], lines
        (folder / file).chmod(0o644)
    folder.chmod(0)
    status, lines = generate_as_nobody()
    assert status == 1 and len(lines) == 1 and str(folder) in lines[0] and "Permission denied" in lines[0], lines


def test_a_read_only_folder_and_no_home(nobody_reads):
    folder, generate_as_nobody = nobody_reads
    folder.chmod(0o555)
    status, lines = generate_as_nobody()
    assert status == 0, lines
    assert subprocess.run([BINARY, "inspect", MODEL], cwd=ROOT, env={}, capture_output=True, timeout=60).returncode == 0


def test_odd_names(tmp_path):
    folder = tmp_path / "a b ü 'quoted' {0} %s"
    shutil.copytree(ROOT / MODEL, folder, ignore=shutil.ignore_patterns("eval", "*.png"))
    for name in (folder, f"{folder}/"):
        done = run("generate", name, "--prompt", "x", "--max-tokens", 2)
        assert done.returncode == 0, done.stderr
    (folder / SHARD).unlink()
    assert str(folder) in generate(folder)


def test_names_that_cannot_be():
    assert "\\x0a" in generate("two\nlines", 2)
    assert "\\xff" in generate(b"not\xffutf8", 2)
    assert "too long" in generate("a" * 5000)
    assert "too long" in fails(1, "inspect", "a/" * 3000)
    assert "{}%s" in fails(2, "inspect", "{}%s")
    for command in ("generate", "inspect", "eval", "chat"):
        extra = ("--prompt", "x") if command == "generate" else ()
        assert "MODEL" in fails(2, command, "", *extra)


@pytest.mark.parametrize(
    "text",
    [
        '[{"function": {"name": ""}}]',
        '[{"function": {"name": "two words"}}]',
        '[{"function": {"name": "f", "parameters": 5}}]',
        '[{"function": {"name": "%s"}}]' % ("f" * 65),
        '[{"function": {"name": "a\\u0000"}}]',
        "[" * 5000,
        '[{"function": 5}]',
        "[null]",
    ],
)
def test_tools(tmp_path, text):
    file = tmp_path / "tools.json"
    file.write_text(text)
    line = fails(2, "generate", MODEL, "--prompt", "x", "--tools", file)
    assert str(file) in line and (f"{file}[0]" in line or "not JSON" in line)
    assert str(tmp_path) in fails(2, "generate", MODEL, "--prompt", "x", "--tools", tmp_path)


def test_tools_from_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with subprocess.Popen(["sh", "-c", f"echo '[]' > '{pipe}'"]):
        assert run("generate", MODEL, "--prompt", "x", "--max-tokens", 2, "--tools", pipe).returncode == 0
