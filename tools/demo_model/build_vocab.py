"""Trains the tokenizer on the first documents of the stream and writes its files."""
import pathlib
import sys

import vocab
import xtml
from corpus import stream

kDocuments = 40_000


def texts(seed, count=kDocuments):
    for i in range(count):
        doc = stream.document(seed, i, shrink=8)
        for segments, _ in xtml.render(doc["messages"], doc["tools"], doc["thinking"], doc["effort"], doc["response_format"]):
            for text, is_control in segments:
                if not is_control:
                    yield text


def main(folder, seed, count=kDocuments):
    pieces = vocab.train_ranks(texts(seed, count))
    vocab.write(folder, pieces)
    return pieces


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
