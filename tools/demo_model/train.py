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
import export
import optim
import parameters
from model import Model

# One row shape a stream; the demo's short and long rows have as many tokens, so that they share their compiled regions.
kShapes = {
    "demo": {"short": dict(rows=4, length=8192, max_documents=512, lookahead=32, shrink=1),
             "long": dict(rows=1, length=32768, max_documents=64, lookahead=6, shrink=1),
             "huge": dict(rows=1, length=131072, max_documents=16, lookahead=4, shrink=1)},
    "toy": {"short": dict(rows=2, length=512, max_documents=64, lookahead=4, shrink=16),
            "long": dict(rows=1, length=512, max_documents=16, lookahead=4, shrink=64),
            "huge": dict(rows=1, length=1024, max_documents=8, lookahead=2, shrink=128)}}
kShapes["demo-on-cpu"] = kShapes["toy"]  # the demo's weights at the toy's row lengths

kLongFrom, kHugeFrom, kHugeEvery = 0.04, 0.1, 90


class Trainer:
    def __init__(self, text, shapes, device, start=None):
        """start: fp32 start values, fresh ones unless given."""
        self.text, self.device, self.shapes = text, device, shapes
        roster = parameters.roster(text)
        self.weights = {n: torch.empty(shape, dtype=dtype, device=device).requires_grad_(not n.endswith("correction_bias"))
                        for n, (shape, dtype, _) in roster.items()}
        start = start or parameters.start_values(text, device)
        self.biases = {n: w.zero_() for n, w in self.weights.items() if n.endswith("correction_bias")}
        self.optimiser = optim.Optimiser(start, self.weights, roster, device)
        self.model = Model(text, self.weights)
        self.bias_rate = torch.zeros((), device=device)
        self.batches, self.graphs, self.pool, self.batch = {}, {}, None, None

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

    def load_batch(self, stream, batch):
        """Copies a batch into the stream's fixed buffers, which the captured step reads."""
        if stream not in self.batches:
            self.batches[stream] = {k: v.to(self.device) for k, v in batch.items() if torch.is_tensor(v)} | {"rows": self.shapes[stream]["rows"]}
        else:
            for key, value in batch.items():
                if torch.is_tensor(value):
                    self.batches[stream][key].copy_(value, non_blocking=True)
        self.batch = self.batches[stream]

    def step(self, stream, batch, sparse, quantise):
        self.load_batch(stream, batch)
        if self.optimiser.quantise != quantise:
            self.optimiser.quantise = quantise
            self.drop_graphs()
        key = stream, sparse
        if key not in self.graphs and self.device == "cuda":
            return self._capture(key, sparse)
        if self.graphs.get(key):
            graph, metrics = self.graphs[key]
            graph.replay()
            return metrics
        return self._step(sparse)

    def drop_graphs(self):
        for w in self.weights.values():
            w.grad = None
        self.graphs, self.pool = {}, None
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _capture(self, key, sparse):
        """Two plain steps (they compile), then the captured one; without capture the steps stay plain."""
        begin, side = time.time(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                metrics = self._step(sparse)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        for w in self.weights.values():
            w.grad = None
        torch.cuda.empty_cache()
        try:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                metrics = self._step(sparse)
            graph.replay()
            self.graphs[key] = graph, metrics
        except Exception as error:  # noqa: BLE001  any failure to capture means plain steps, not a lost run
            print("no capture:", repr(error)[:600], flush=True)
            torch.cuda.synchronize()
            self.graphs[key] = None
            metrics = self._step(sparse)
        torch.cuda.synchronize()
        print(f"captured {key} in {time.time() - begin:.1f} s, {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB", flush=True)
        return metrics

    def publish(self, quantise):
        """Writes the masters into the stored tensors once more, the experts rounded or not."""
        self.drop_graphs()
        self.optimiser.quantise = quantise
        self.optimiser.publish()

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


def stream_of(step, fraction):
    """Which stream a step reads: short documents first, then long ones among them, then a few very long ones."""
    if fraction >= kHugeFrom and step % kHugeEvery == kHugeEvery - 1:
        return "huge"
    return "long" if fraction >= kLongFrom and step % 10 in (2, 5, 8) else "short"


def train(folder, shape, seconds, whole_seconds=None, seed=1, workers=(0, 0, 0), checkpoint=None, resume=None, warm=None, rate=3e-3,
          decay_from=0.5, quantise_from=0.5, sparse_from=1.0, max_steps=None, stored="mixed", export_every=None):
    """Trains for `seconds` of a schedule of `whole_seconds` (both count everything up to the last step, compiles included).

    resume: checkpoint of an earlier part of the schedule. warm: folder of an exported model to start from. stored: format of the latents,
    or "mixed" (latents.py). export_every: seconds between exports on the way, for a run that may be cut off.
    Returns the trainer and the log.
    """
    begin = time.time()
    folder, whole_seconds = pathlib.Path(folder), whole_seconds or seconds
    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = config.make(config.kToy if shape == "toy" else config.kDemo)
    text, shapes = whole["text_config"], kShapes[shape]
    saved = torch.load(resume, map_location=device) if resume else {}
    first, tokens = saved.get("documents", {n: 0 for n in shapes}), saved.get("tokens", {n: 0 for n in shapes})
    batches = {n: iter(data.loader(folder, seed, first[n], n, stored, shapes[n], w)) for n, w in zip(shapes, workers)}
    start = {n: w.float().to(device) for n, w in export.read(pathlib.Path(warm), text).items()} if warm else None
    trainer = Trainer(text, shapes, device, start)
    if saved:
        trainer.load(saved["trainer"])
    elif warm:
        for name, bias in trainer.biases.items():
            bias.copy_(start[name])
    log, step, counts = list(saved.get("log", [])), saved.get("steps", 0), {n: 0 for n in shapes}
    before, first_step, last_index = saved.get("seconds", 0.0), step, dict(first)
    config.write(folder, whole)
    exported = begin
    print(f"parameters {sum(w.numel() for w in trainer.weights.values()):,}; start-up {time.time() - begin:.1f} s", flush=True)
    while True:
        elapsed = time.time() - begin
        fraction = (before + elapsed) / whole_seconds
        if max_steps:
            fraction = (step - first_step) / max_steps
        if fraction >= 1 or elapsed >= seconds:
            break
        scale = learning_rate(fraction, step - first_step if warm else step, decay_from)
        trainer.optimiser.lr["muon"].fill_(rate * scale)
        trainer.optimiser.lr["adam"].fill_(rate * scale)
        trainer.bias_rate.fill_(3e-3 if fraction < 0.2 else 1e-3 if fraction < 0.9 else 0.0)
        sparse, quantise = fraction >= sparse_from, fraction >= quantise_from
        stream = "short" if sparse else stream_of(step, fraction)
        batch = next(batches[stream])
        last_index[stream] = max(last_index[stream], batch["last_index"] + 1)
        tokens[stream] += batch["ids"].numel()
        metrics = trainer.step(stream, batch, sparse, quantise)
        step += 1
        counts[stream] += 1
        if counts[stream] % {"short": 25, "long": 25, "huge": 5}[stream] == 0 or step < 4 or device == "cpu":
            loss, answer, accuracy, kl, load = [m.tolist() for m in metrics]
            entry = {"step": step, "stream": stream, "seconds": round(before + time.time() - begin, 1), "tokens": sum(tokens.values()),
                     "loss": round(loss, 4), "answer_loss": round(answer, 5), "answer_accuracy": round(accuracy, 5),
                     "index_kl": [round(x, 4) for x in kl], "load_max_over_mean": round(load, 2), "rate": round(scale, 4), "sparse": sparse,
                     "quantised": quantise}
            log.append(entry)
            if not math.isfinite(loss):
                raise RuntimeError("the loss is not finite")
            if counts[stream] % {"short": 150, "long": 75, "huge": 10}[stream] == 0 or step < 4 or device == "cpu":
                print(json.dumps(entry), flush=True)
        if export_every and time.time() - exported > export_every:
            export.write(folder, text, trainer.weights)
            exported = time.time()
            print(f"exported after step {step}", flush=True)
    del batches
    seconds_used = before + time.time() - begin
    if checkpoint:
        torch.save({"trainer": trainer.state(), "documents": last_index, "tokens": tokens, "log": log, "steps": step, "seconds": seconds_used},
                   checkpoint)
    trainer.publish(quantise=True)
    size = export.write(folder, text, trainer.weights)
    record = {"seed": seed, "latents": stored, "documents": last_index, "tokens": tokens, "steps": step, "seconds": round(seconds_used, 1),
              "parameters": sum(w.numel() for w in trainer.weights.values()), "tensor_bytes": size, "log": log}
    return text, trainer, record
