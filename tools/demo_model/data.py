"""Packs stream documents into batches of fixed shape: rows of fixed length, no document crosses a row.

A worker takes the documents i with i mod workers == its number, in order, so the union of all workers is a prefix of the
stream and the highest index in use says how much of the stream was trained on.
"""
import pathlib

import numpy as np
import torch

import encode
import latents
import vocab
from corpus import stream

kSampled = 512  # queries a batch at which the indexer learns


class Packed(torch.utils.data.IterableDataset):
    def __init__(self, folder, seed, first, name, stored, rows, length, max_documents, lookahead=32, shrink=1):
        self.folder, self.seed, self.first, self.name = pathlib.Path(folder), seed, first, name
        self.stored, self.shrink = stored, shrink
        self.rows, self.length, self.max_documents, self.lookahead = rows, length, max_documents, lookahead

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        torch.set_num_threads(1)
        tokenizer = vocab.Tokenizer(self.folder)
        rng = np.random.default_rng([self.seed, worker, self.first])
        index, waiting, rows, used = self.first + worker, [], [[] for _ in range(self.rows)], [0] * self.rows
        while True:
            ids, weights = encode.document(tokenizer, stream.document(self.seed, index, self.name, self.shrink))
            index += workers
            if len(ids) <= self.length:
                waiting.append((ids, weights))
            waiting = [d for d in waiting if not self._place(d, rows, used)]
            full = sum(map(len, rows)) + 2 * self.rows >= self.max_documents
            if len(waiting) >= self.lookahead or full:
                yield batch(rows, self.length, self.max_documents, rng, self.stored) | {"last_index": index - workers}
                rows, used = [[] for _ in range(self.rows)], [0] * self.rows

    def _place(self, document, rows, used):
        size = len(document[0])
        for i in np.argsort(used):
            if used[i] + size <= self.length:
                rows[i].append(document)
                used[i] += size
                return True
        return False


def batch(rows, length, max_documents, rng, stored="bf16"):
    """Tensors of rows of (ids, weights) documents, whose latents are kept in the format `stored` (latents.py)."""
    count = len(rows)
    per_row, total = kSampled // count, count * length
    ids, target = np.full(total, vocab.kPad, np.int64), np.zeros(total, np.int64)
    weight, position, document = np.zeros(total, np.float32), np.zeros(total, np.int32), np.zeros(total, np.int32)
    valid, bounds, number = np.zeros(total, np.float32), [0], 0
    sampled = np.zeros((count, per_row), np.int64)
    for r, row in enumerate(rows):
        at = r * length
        for tokens, weights in row:
            n = len(tokens)
            ids[at:at + n], target[at:at + n - 1] = tokens, tokens[1:]
            weight[at:at + n - 1], position[at:at + n] = weights[1:], np.arange(n)
            document[at:at + n], valid[at:at + n] = number, 1.0
            at, number = at + n, number + 1
            bounds.append(at)
        end = (r + 1) * length
        if at < end:
            position[at:end], document[at:end] = np.arange(end - at), number
            number += 1
            bounds.append(end)
        here = slice(r * length, end)
        candidates = np.flatnonzero((weight[here] > 0.5) & (position[here] > 150))
        sampled[r] = rng.integers(0, max(1, at - r * length), per_row)
        if len(candidates):
            sampled[r, ::2] = rng.choice(candidates, per_row // 2)
    formats = latents.draw(rng, stored, number)[document]
    bounds += [total] * (max_documents + 1 - len(bounds))
    to = torch.from_numpy
    return {"ids": to(ids), "target": to(target), "weight": to(weight), "position": to(position), "document": to(document),
            "valid": to(valid), "sampled": to(sampled), "latents": to(formats), "cu_seqlens": torch.tensor(bounds, dtype=torch.int32),
            "cu_seqlens_long": torch.tensor(bounds)}


def loader(folder, seed, first, name, stored, shape, workers):
    """Batches of one stream; shape: rows, length, max_documents, lookahead, shrink."""
    return torch.utils.data.DataLoader(
        Packed(folder, seed, first, name, stored, **shape), batch_size=None, num_workers=workers,
        pin_memory=torch.cuda.is_available(), **({"prefetch_factor": 4} if workers else {}))
