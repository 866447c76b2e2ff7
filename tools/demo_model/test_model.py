"""The training forward and the token-by-token decoder compute the same function; MXFP4 and the packing round-trip."""
import pathlib

import pytest

torch = pytest.importorskip("torch")

import config  # noqa: E402
import mxfp4  # noqa: E402
import parameters  # noqa: E402
from decode import Decoder  # noqa: E402
from model import Model  # noqa: E402


def _weights(text):
    start = parameters.start_values(text, "cpu", seed=3)
    rng = torch.Generator().manual_seed(4)
    out = {}
    for name, (_, dtype, kind) in parameters.roster(text).items():
        value = start[name] + (0.3 * torch.randn(start[name].shape, generator=rng) if kind in ("zero", "one") else 0)
        out[name] = value.to(dtype)
    return out


@pytest.mark.parametrize("sparse", [False, True])
def test_decoder_agrees_with_training_forward(sparse):
    text = config.make(config.kToy)["text_config"]
    weights = _weights(text)
    lengths, row = [40, 24], 64
    rng = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 4000, (row,), generator=rng)
    position = torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths])
    document = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths)).int()
    target = torch.roll(ids, -1)
    batch = {"ids": ids, "target": target, "position": position, "document": document, "valid": torch.ones(row), "rows": 1,
             "sampled": torch.arange(row)[None]}
    decoder = Decoder(text, weights, None if sparse else 10_000)
    at = 0
    for n in lengths:
        decoder.start(1, n)
        for t in range(n):
            logits = decoder.step(ids[at + t:at + t + 1], t)
            if t % 7 == 6:
                weight = torch.zeros(row)
                weight[at + t] = 1.0
                _, nll, *_ = Model(text, weights).forward(batch | {"weight": weight}, sparse)
                expected = torch.nn.functional.cross_entropy(logits, target[at + t:at + t + 1])
                assert abs(nll.item() - expected.item()) < 0.05, (at, t)
        at += n


def test_mxfp4_round_trip_and_nibble_order():
    w = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    packed, scale = mxfp4.pack(w)
    assert packed.shape == (5, 32) and scale.shape == (5, 2)
    assert torch.equal(mxfp4.unpack(packed, scale), mxfp4.fake_quantise(w))
    assert torch.equal(mxfp4.fake_quantise(mxfp4.fake_quantise(w)), mxfp4.fake_quantise(w))
    one = torch.zeros(1, 32)
    one[0, 0], one[0, 1] = 4.0, -6.0
    packed, scale = mxfp4.pack(one)
    assert packed[0, 0].item() == 6 | (15 << 4) and scale[0, 0].item() == 127


def test_known_words_of_events_have_weight_and_change_no_token():
    import encode
    import vocab
    from corpus import stream
    folder = pathlib.Path(__file__).parents[2] / "models" / "tiny-k31"
    if not (folder / "tiktoken.model").exists():
        pytest.skip("no trained vocabulary")
    tokenizer = vocab.Tokenizer(folder)
    documents = [d for d in (stream.document(1, i, "long", mixture="lines") for i in range(12)) if d["skill"] == "events"]
    assert len(documents) > 2
    for document in documents:
        ids, weights = encode.document(tokenizer, document)
        assert ids == encode.document(tokenizer, document | {"known": None})[0]
        text = document["messages"][0]["content"]
        assert 0.02 * len(ids) < sum(w == 1.0 for w in weights) < 0.6 * len(ids), text


def test_tokenizer_keeps_digits_single():
    import vocab
    folder = pathlib.Path(__file__).parents[2] / "models" / "tiny-k31"
    if not (folder / "tiktoken.model").exists():
        pytest.skip("no trained vocabulary")
    tokenizer = vocab.Tokenizer(folder)
    ids = tokenizer.encode([("What is 17 + 25?", False), ("<|end_of_msg|>", True)])
    assert [tokenizer.decode([i]) for i in ids if tokenizer.decode([i]).strip().isdigit()] == ["1", "7", "2", "5"]
    assert ids[-1] == vocab.kEndOfMessage
    assert tokenizer.encode([("<|open|>", False)]) != [vocab.kBaseRanks + 3]
