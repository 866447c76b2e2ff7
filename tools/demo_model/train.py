"""Trains for a fixed wall-clock time and always ends with a checkpoint: dense attention, then rounded experts, then sparse.

The step has fixed shapes and no host decisions, so on a GPU it is captured once a stage and replayed.
"""
import json
import math
import pathlib
import time

import torch

import config
import data
import evaluate
import export
import optim
import parameters
from model import Model

kShapes = {"demo": dict(rows=4, length=8192, max_documents=512, lookahead=32), "toy": dict(rows=2, length=512, max_documents=64, lookahead=4)}


class Trainer:
    def __init__(self, text, batch_shape, device):
        self.text, self.device = text, device
        roster = parameters.roster(text)
        self.weights = {n: torch.empty(shape, dtype=dtype, device=device).requires_grad_(not n.endswith("correction_bias"))
                        for n, (shape, dtype, _) in roster.items()}
        start = parameters.start_values(text, device)
        self.biases = {n: w.zero_() for n, w in self.weights.items() if n.endswith("correction_bias")}
        self.optimiser = optim.Optimiser(start, self.weights, roster, device)
        self.model = Model(text, self.weights)
        self.bias_rate = torch.zeros((), device=device)
        self.batch, self.graph, self.stage, self.metrics = None, None, None, None
        self.rows = batch_shape["rows"]

    def _step(self, sparse):
        for w in self.weights.values():
            w.grad = None
        loss, *metrics = self.model.forward(self.batch, sparse)
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            for layer, load in self.model.loads.items():
                bias = self.biases[parameters.layer_prefix(layer) + "block_sparse_moe.gate.e_score_correction_bias"]
                bias.add_(torch.sign(load.mean() - load) * self.bias_rate)
            worst = torch.stack([load.max() / load.mean() for load in self.model.loads.values()]).max()
        return [loss.detach(), *metrics, worst]

    def step(self, batch, sparse, quantise):
        if self.batch is None:
            self.batch = {k: v.to(self.device) for k, v in batch.items() if torch.is_tensor(v)} | {"rows": self.rows}
        else:
            for key, value in batch.items():
                if torch.is_tensor(value):
                    self.batch[key].copy_(value, non_blocking=True)
        if self.stage != (sparse, quantise):
            self.stage, self.graph, self.optimiser.quantise = (sparse, quantise), None, quantise
            if self.device == "cuda":
                return self._capture(sparse)
        if self.graph:
            self.graph.replay()
        else:
            self.metrics = self._step(sparse)
        return self.metrics

    def _capture(self, sparse):
        """Two plain steps (they compile), then the captured one; without capture the steps stay plain."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.metrics = self._step(sparse)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                metrics = self._step(sparse)
            graph.replay()
            self.graph, self.metrics = graph, metrics
        except Exception as error:  # noqa: BLE001  any failure to capture means plain steps, not a lost run
            print("no capture:", repr(error)[:600], flush=True)
            torch.cuda.synchronize()
            self.metrics = self._step(sparse)
        return self.metrics

    def state(self):
        return {"optimiser": self.optimiser.state(), "biases": self.biases}

    def load(self, state):
        self.optimiser.load(state["optimiser"])
        for name, bias in self.biases.items():
            bias.copy_(state["biases"][name])


def learning_rate(fraction, step, decay_from):
    warm = min(1.0, (step + 1) / 60)
    tail = 1.0 if fraction < decay_from else 1.0 - 0.97 * min(1.0, (fraction - decay_from) / (1 - decay_from))
    return warm * tail


def train(folder, shape, seconds, seed=1, workers=0, checkpoint=None, resume=None, rate=3e-3, decay_from=0.55, quantise_from=0.7,
          sparse_from=0.9, evaluate_every=None, max_steps=None):
    """seconds counts everything from here to the last step, compiles included. Returns the trainer and the log."""
    begin = time.time()
    folder = pathlib.Path(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = config.make(config.kDemo if shape == "demo" else config.kToy)
    text, batch_shape = whole["text_config"], kShapes[shape]
    first, tokens = 0, 0
    saved = torch.load(resume, map_location=device) if resume else None
    if saved:
        first, tokens = saved["documents"], saved["tokens"]
    batches = iter(data.loader(folder, seed, first, workers=workers, **batch_shape))
    trainer = Trainer(text, batch_shape, device)
    if saved:
        trainer.load(saved["trainer"])
    log, last_index, step = list(saved["log"]) if saved else [], first, 0
    offset = log[-1]["seconds"] if log else 0.0
    print(f"parameters {sum(w.numel() for w in trainer.weights.values()):,}; start-up {time.time() - begin:.1f} s", flush=True)
    next_evaluation = evaluate_every
    while True:
        elapsed = time.time() - begin
        fraction = max(elapsed / seconds, step / max_steps if max_steps else 0.0)
        if fraction >= 1:
            break
        scale = learning_rate(fraction, step, decay_from)
        trainer.optimiser.lr["muon"].fill_(rate * scale)
        trainer.optimiser.lr["adam"].fill_(rate * scale)
        trainer.bias_rate.fill_(3e-3 if fraction < 0.3 else 1e-3 if fraction < 0.9 else 0.0)
        batch = next(batches)
        last_index = max(last_index, batch["last_index"] + 1)
        tokens += batch["ids"].numel()
        metrics = trainer.step(batch, fraction >= sparse_from, fraction >= quantise_from)
        step += 1
        if step % 25 == 0 or step < 4 or device == "cpu":
            loss, answer, accuracy, kl, load = [m.tolist() for m in metrics]
            entry = {"step": step, "seconds": round(offset + time.time() - begin, 1), "tokens": tokens, "loss": round(loss, 4),
                     "answer_loss": round(answer, 5), "answer_accuracy": round(accuracy, 5), "index_kl": [round(x, 4) for x in kl],
                     "load_max_over_mean": round(load, 2), "rate": scale, "sparse": fraction >= sparse_from,
                     "quantised": fraction >= quantise_from}
            log.append(entry)
            if not math.isfinite(loss):
                raise RuntimeError("the loss is not finite")
            if step % 100 == 0 or step < 4 or device == "cpu":
                print(json.dumps(entry), flush=True)
        if next_evaluation and elapsed > next_evaluation:
            next_evaluation += evaluate_every
            at = time.time()
            scores, _, _ = evaluate.run(text, trainer.weights, folder, limit=64, only=("arithmetic", "json", "sorting", "chat"))
            log[-1]["scores"] = {k: f"{a}/{b}" for k, (a, b) in scores.items()}
            print(f"{elapsed:.0f} s", log[-1]["scores"], f"({time.time() - at:.1f} s)", flush=True)
    del batches
    if checkpoint:
        torch.save({"trainer": trainer.state(), "documents": last_index, "tokens": tokens, "log": log}, checkpoint)
    trainer.optimiser.quantise = True
    trainer.optimiser.publish()
    config.write(folder, whole)
    size = export.write(folder, text, trainer.weights)
    record = {"seed": seed, "documents": last_index, "tokens": tokens, "steps": step, "seconds": round(offset + time.time() - begin, 1),
              "parameters": sum(w.numel() for w in trainer.weights.values()), "tensor_bytes": size, "log": log}
    return text, trainer, record
