"""The training forward and the token-by-token decoder compute the same function; MXFP4 and the packing round-trip."""
import pathlib

import pytest

torch = pytest.importorskip("torch")

import config  # noqa: E402
import latents  # noqa: E402
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


@pytest.mark.parametrize("sparse, stored", [(False, "bf16"), (True, "bf16"), (True, "fp8"), (True, "nvfp4")])
def test_decoder_agrees_with_training_forward(sparse, stored):
    text = config.make(config.kToy)["text_config"]
    weights = _weights(text)
    lengths, row = [40, 24], 64
    rng = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 4000, (row,), generator=rng)
    position = torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths])
    document = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths)).int()
    target = torch.roll(ids, -1)
    batch = {"ids": ids, "target": target, "position": position, "document": document, "valid": torch.ones(row), "rows": 1,
             "latents": torch.full((row,), latents.kFormats.index(stored)), "sampled": torch.arange(row)[None]}
    decoder = Decoder(text, weights, None if sparse else 10_000, latent_format=stored)
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


def _nearest(x, magnitudes):
    """By search of all codes: the nearest magnitude, of two equally near ones that of the even code."""
    gap = (x.abs().double().unsqueeze(-1) - magnitudes).abs()
    codes = torch.arange(len(magnitudes))
    best = torch.where(gap == gap.amin(-1, keepdim=True), codes % 2 * 1000 + codes, 1 << 20).amin(-1) % 1000
    return torch.copysign(magnitudes[best].float(), x)


kE4m3 = torch.tensor([(c % 8) * 2.0 ** -9 if c < 8 else (1 + c % 8 / 8) * 2.0 ** (c // 8 - 7) for c in range(127)], dtype=torch.float64)
kE2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def test_latents_are_those_of_the_cache_formats():
    rng = torch.Generator().manual_seed(7)
    size = 2.0 ** torch.randint(-14, 12, (60, 1), generator=rng)
    c, pe = (torch.randn(60, n, generator=rng) * size for n in (512, 64))
    halfway = (kE4m3[1:] + kE4m3[:-1]).float() / 2
    c[0, :126], c[1, :126], c[2, :16] = halfway, -halfway, 0.0
    c[3, :16] = torch.tensor([6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -5, -3.5, -2.5, -1.75, -1.25, -0.75, -0.25, 0])  # scale 1, every tie
    pe = pe.bfloat16()
    stored = {name: latents.stored(c, pe, torch.full((60,), n)) for n, name in enumerate(latents.kFormats)}
    blocks = c.unflatten(-1, (-1, 16))
    scale = _nearest(blocks.abs().amax(-1, keepdim=True) / 6, kE4m3)
    fp4 = torch.where(scale == 0, 0.0, _nearest(blocks / torch.where(scale == 0, 1.0, scale), kE2m1) * scale).flatten(-2)
    expected = {"bf16": (c, pe), "fp8": (_nearest(c, kE4m3), _nearest(pe.float(), kE4m3)), "nvfp4": (fp4, _nearest(pe.float(), kE4m3))}
    assert (scale == 0).any() and (scale == 448).any()
    for name, (a, b) in expected.items():
        assert torch.equal(stored[name][0], a.bfloat16()) and torch.equal(stored[name][1], b.bfloat16()), name
        if name != "bf16":
            assert (stored[name][0] != c.bfloat16()).float().mean() > 0.3


def test_the_gradient_passes_the_rounding_of_latents():
    c, pe = torch.randn(3, 512).requires_grad_(), torch.randn(3, 64).bfloat16().requires_grad_()
    a, b = latents.stored(c, pe, torch.arange(3))
    seed = torch.randn(3, 512).bfloat16(), torch.randn(3, 64).bfloat16()
    torch.autograd.backward((a, b), seed)
    assert torch.equal(c.grad, seed[0].float()) and torch.equal(pe.grad, seed[1])


def test_mixed_latents_are_one_format_a_document_and_all_formats_a_batch():
    import numpy as np

    import data
    rows = [[([5, 6, 7], [0, 1, 1])] * 40] * 2
    made = data.batch(rows, 128, 90, np.random.default_rng(1), "mixed")
    document, code = made["document"], made["latents"]
    for d in document.unique():
        assert len(code[document == d].unique()) == 1
    assert set(code.tolist()) == {0, 1, 2}
    assert set(data.batch(rows, 128, 90, np.random.default_rng(1))["latents"].tolist()) == {0}


def test_known_words_of_events_have_weight_and_change_no_token():
    import encode
    import vocab
    from corpus import stream
    folder = pathlib.Path(__file__).parents[2] / "models" / "tiny-k31"
    if not (folder / "tiktoken.model").exists():
        pytest.skip("no trained vocabulary")
    tokenizer = vocab.Tokenizer(folder)
    documents = [d for d in (stream.document(1, i, "long") for i in range(12)) if d["skill"] == "events"]
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
