"""One command: vocabulary, held-out suites, training, export, scores, loss curve. `python run.py --help` lists the knobs."""
import argparse
import json
import pathlib
import time

import build_vocab
import encode
import evaluate
import export
import train
import vocab
from corpus import evalsets


def write_prompt_ids(folder):
    """Token ids of a few prompts of every suite, for checking another tokenizer and chat format against this one."""
    tokenizer = vocab.Tokenizer(folder)
    ids = {item["id"]: encode.prompt(tokenizer, item) for items in evaluate.suites(folder, 8).values() for item in items
           if not item["id"].startswith("recall")}
    (folder / "eval" / "prompt_ids.json").write_text("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in ids.items()) + "\n}\n")


def plot(path, log):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    million = [e["tokens"] / 1e6 for e in log]
    left.semilogy(million, [e["answer_loss"] for e in log])
    left.set(xlabel="million tokens", ylabel="answer loss (nats a token)")
    for layer in range(len(log[0]["index_kl"])):
        right.semilogy(million, [e["index_kl"][layer] for e in log], label=f"indexer {layer}")
    right.set(xlabel="million tokens", ylabel="KL of index scores to attention")
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def recall(folder, text, weights, count):
    """Long contexts, with the indexer's keys and with as many keys by chance; adds both scores to training.json."""
    record = json.loads((folder / "training.json").read_text())
    for name, by_chance in (("recall", False), ("recall_with_random_keys", True)):
        scores, _, _ = evaluate.run(text, weights, folder, count, only=("recall",), random_keys=by_chance)
        right, asked = scores["recall"]
        record["scores"][name] = {"right": right, "asked": asked}
        print(name, f"{right}/{asked}", flush=True)
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--shape", choices=("demo", "toy"), default="demo")
    p.add_argument("--seconds", type=float, default=480)
    p.add_argument("--max-steps", type=int)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--rate", type=float, default=3e-3)
    p.add_argument("--decay-from", type=float, default=0.55)
    p.add_argument("--quantise-from", type=float, default=0.7)
    p.add_argument("--sparse-from", type=float, default=0.9)
    p.add_argument("--checkpoint")
    p.add_argument("--resume")
    p.add_argument("--evaluate-every", type=float)
    p.add_argument("--evaluate-limit", type=int)
    p.add_argument("--recall-items", type=int, default=32, help="long contexts to score at the end (a minute for 32); 0 skips them")
    p.add_argument("--vocab-documents", type=int, default=build_vocab.kDocuments)
    p.add_argument("--keep-vocab", action="store_true", help="use the tokenizer and the suites already in --out")
    a = p.parse_args()
    begin = time.time()
    if not a.keep_vocab:
        build_vocab.main(a.out, a.seed, a.vocab_documents)
        evalsets.write(a.out / "eval")
    print(f"vocabulary and suites: {time.time() - begin:.1f} s", flush=True)
    text, trainer, record = train.train(
        a.out, a.shape, a.seconds, a.seed, a.workers, a.checkpoint, a.resume, a.rate, a.decay_from, a.quantise_from, a.sparse_from,
        a.evaluate_every, a.max_steps)
    print(f"exported {record['tensor_bytes']:,} bytes of tensors after {record['tokens'] / 1e6:.1f} M tokens", flush=True)
    device = next(iter(trainer.weights.values())).device
    stored = {n: w.to(device) for n, w in export.read(a.out, text).items()}
    differing = [n for n, w in stored.items() if not (w == trainer.weights[n].detach()).all()]
    print("stored weights that differ from the trained ones:", differing or "none", flush=True)
    scores, wrong, replies = evaluate.run(text, stored, a.out, a.evaluate_limit, only=[n for n in evalsets.kSuites if n != "recall"])
    record["scores"] = {name: {"right": right, "asked": asked} for name, (right, asked) in scores.items()}
    write_prompt_ids(a.out)
    log = record.pop("log")
    (a.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    (a.out / "training_log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in log))
    (a.out / "eval" / "replies.json").write_text(json.dumps(replies, indent=1) + "\n")
    try:
        plot(a.out / "loss.png", log)
    except Exception as error:  # noqa: BLE001  a missing plotting library must not lose a trained model
        print("no plot:", error)
    for name, item, question, said, answer in wrong:
        print(f"  wrong {item}: {question[-200:]!r} -> {said[-260:]!r}, expected {json.dumps(answer)[:200]}")
    print(json.dumps(record["scores"]), f"total {time.time() - begin:.1f} s", flush=True)
    if a.recall_items:
        recall(a.out, text, stored, a.recall_items)


if __name__ == "__main__":
    main()
