"""One part of a training: vocabulary, held-out suites, training, export, scores, curves. `python run.py --help` lists the knobs."""
import argparse
import json
import os
import pathlib
import shutil
import time

import torch

import build_vocab
import config
import encode
import evaluate
import export
import latents
import scores
import train
import vocab
from corpus import evalsets

kTokenizer = ("tiktoken.model", "tokenizer_config.json")
kLineSuites = tuple(evalsets.kDocumentSuites)


def write_prompt_ids(folder):
    """Token ids of a few prompts of every suite, for checking another tokenizer and chat format against this one."""
    tokenizer = vocab.Tokenizer(folder)
    ids = {item["id"]: encode.prompt(tokenizer, item) for items in evaluate.suites(folder, 8).values() for item in items
           if "document" not in item}
    (folder / "eval" / "prompt_ids.json").write_text("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in ids.items()) + "\n}\n")


def earlier_parts(warm):
    """The record of how the weights that this training started from were trained."""
    path = pathlib.Path(warm or "") / "training.json"
    return json.loads(path.read_text())["parts"] if warm and path.exists() else []


def plot(path, log):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4))
    for stream in ("short", "long", "huge"):
        part = [e for e in log if e["stream"] == stream]
        million = [e["tokens"] / 1e6 for e in part]
        left.semilogy(million, [max(e["answer_loss"], 1e-5) for e in part], label=stream)
        middle.semilogy(million, [max(1 - e["answer_accuracy"], 1e-5) for e in part], label=stream)
    left.set(xlabel="million tokens", ylabel="answer loss (nats a token)")
    middle.set(xlabel="million tokens", ylabel="answer tokens wrong")
    part = [e for e in log if e["stream"] == "short"]
    for layer in range(len(log[0]["index_kl"])):
        right.semilogy([e["tokens"] / 1e6 for e in part], [e["index_kl"][layer] for e in part], label=f"indexer {layer}, short rows")
    right.set(xlabel="million tokens", ylabel="KL of index scores to attention")
    for axis in (left, middle, right):
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def write_with_bf16_experts(folder, trainer, model):
    """The trained model with its experts as they were before their rounding, to measure what that rounding costs."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("model*"), dirs_exist_ok=True)
    config.write(folder, config.with_bf16_experts(json.loads((model / "config.json").read_text())))
    trainer.publish(quantise=False)
    export.write(folder, trainer.text, trainer.weights, mxfp4_experts=False)
    trainer.publish(quantise=True)


def score(trainer, folder, limit=None, full=False, up_to=1 << 30):
    """Scores of the development items, then of the suites: with all keys, with the indexer's, and the controls."""
    top, out = trainer.text["dsa_config"]["top_k"], {}
    development, documents = ([d for d in scores.encoded(folder, limit=limit, development=twin) if len(d[1]) <= up_to] for twin in (True, False))
    lines = [d for d in documents if d[0] in kLineSuites]
    runs = [(f"development top-{top}", development, (top, False)), ("dense", documents, None), (f"top-{top}", documents, (top, False))]
    if full:
        runs += [(f"{name} latents", documents, (top, False), name) for name in latents.kFormats[1:]]
        runs += [(f"top-{top // 2}", lines, (top // 2, False)), (f"top-{top // 4}", lines, (top // 4, False)),
                 (f"random-{top}", [d for d in lines if d[0] in ("needle-4k", "needle-16k")], (top, True))]
    for name, *chosen in runs:
        at = time.time()
        out[name] = scores.run(trainer, *chosen)
        print(name, {k: f"{a}/{b}" for k, (a, b) in out[name].items()}, f"({time.time() - at:.1f} s)", flush=True)
    return out


def workers():
    """Processes that make documents, of each stream: most cores of a GPU machine; none where the training itself needs them."""
    return [max(1, os.cpu_count() * n // 16) for n in (9, 3, 2)] if torch.cuda.is_available() else [0, 0, 0]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--shape", choices=tuple(train.kShapes), default="demo")
    p.add_argument("--seconds", type=float, default=1480, help="of this call")
    p.add_argument("--whole-seconds", type=float, help="of the schedule that this call is a part of")
    p.add_argument("--max-steps", type=int)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, nargs=3, default=workers(), help="of the short, the long and the huge stream")
    p.add_argument("--latents", choices=(*latents.kFormats, "mixed"), default="mixed", help="as the cache stores them; mixed ones are drawn for every document")
    p.add_argument("--rate", type=float, default=3e-3)
    p.add_argument("--decay-from", type=float, default=0.5)
    p.add_argument("--quantise-from", type=float, default=0.5)
    p.add_argument("--sparse-from", type=float, default=1.0, help="1: attention stays dense throughout")
    p.add_argument("--huge-every", type=int, default=train.kHugeEvery, help="steps from one row of 131,072 tokens to the next")
    p.add_argument("--score-up-to", type=int, default=1 << 30, help="score only documents of at most this many tokens")
    p.add_argument("--export-every", type=float, help="seconds between exports before the last one")
    p.add_argument("--bf16-experts", type=pathlib.Path, help="folder for the model with experts that are not rounded")
    p.add_argument("--checkpoint")
    p.add_argument("--resume")
    p.add_argument("--warm", help="folder of an exported model to start from, whose tokenizer is kept")
    p.add_argument("--score-limit", type=int)
    p.add_argument("--full-scores", action="store_true")
    p.add_argument("--free-running", type=int, default=0, help="items of each short suite to decode token by token as well")
    p.add_argument("--vocab-documents", type=int, default=build_vocab.kDocuments)
    p.add_argument("--keep-vocab", action="store_true", help="use the tokenizer already in --out")
    a = p.parse_args()
    begin = time.time()
    train.kHugeEvery = a.huge_every
    a.out.mkdir(parents=True, exist_ok=True)
    if a.warm:
        for name in kTokenizer:
            (a.out / name).write_bytes((pathlib.Path(a.warm) / name).read_bytes())
    elif not a.keep_vocab:
        build_vocab.main(a.out, a.seed, a.vocab_documents)
    evalsets.write(a.out / "eval")
    print(f"vocabulary and suites: {time.time() - begin:.1f} s", flush=True)
    text, trainer, record = train.train(
        a.out, a.shape, a.seconds, a.whole_seconds, a.seed, a.workers, a.checkpoint, a.resume, a.warm, a.rate, a.decay_from, a.quantise_from,
        a.sparse_from, a.max_steps, a.latents, a.export_every)
    print(f"exported {record['tensor_bytes']:,} bytes of tensors after {sum(record['tokens'].values()) / 1e6:.1f} M tokens", flush=True)
    log = record.pop("log")
    parts = earlier_parts(a.warm)
    part = {k: record[k] for k in ("seed", "latents", "documents", "tokens", "steps", "seconds")}
    if parts:
        part["from"] = f"the export of part {len(parts)}"
    record = {"parts": [*parts, part], "parameters": record["parameters"], "tensor_bytes": record["tensor_bytes"]}
    (a.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    (a.out / "training_log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in log))
    write_prompt_ids(a.out)
    if a.bf16_experts:
        write_with_bf16_experts(a.bf16_experts, trainer, a.out)
    device = next(iter(trainer.weights.values())).device
    stored = {n: w.to(device) for n, w in export.read(a.out, text).items()}
    differing = [n for n, w in stored.items() if not (w == trainer.weights[n].detach()).all()]
    print("stored weights that differ from the trained ones:", differing or "none", flush=True)
    if a.score_up_to:
        record["teacher_forced"] = score(trainer, a.out, a.score_limit, a.full_scores, a.score_up_to)
    if a.free_running:
        found, _, _ = evaluate.run(text, stored, a.out, a.free_running, only=[n for n in evalsets.kSuites if n != "agents"])
        record["free_running"] = found
        print("free running", found, flush=True)
    (a.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    try:
        plot(a.out / "loss.png", log)
    except Exception as error:  # noqa: BLE001  a missing plotting library must not lose a trained model
        print("no plot:", error)
    print(f"total {time.time() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
