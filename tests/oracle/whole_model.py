"""The checks of a whole-model trace, for the engine's tests and for the tests of the checks themselves."""

from oracle import bf16_reference, compare, config as configs, model

# Gaps between scores of what the engine took and what the oracle would take, in standard deviations of a row's scores.
# An e4m3 index vector is off by 2.6 % rms per element, which moves a score by about 0.05; the largest of some 10^5 near the
# border of the top-k moves by 0.35. The router is fp32, and differs only through the bf16 stream it reads.
KEY_GAP = 0.5
EXPERT_GAP = 0.25
OVERLAP = 0.95
MARGIN_IN_ERRORS = 4.0
GREEDY_SHARE = 0.95


def report(folder, tokens, trace):
    """Everything the checks look at, as one dict of numbers."""
    config = configs.load(folder)
    exact = model.run(folder, tokens, given=trace)
    reference = bf16_reference.run(folder, tokens, given=trace)
    return {
        "error": compare.relative_l2(trace.logits, exact.logits),
        "bound": compare.relative_l2(reference.logits, exact.logits),
        "error by layer": {
            i: (compare.relative_l2(x, exact.outputs[i]), compare.relative_l2(reference.outputs[i], exact.outputs[i]))
            for i, x in trace.outputs.items()
        },
        "keys": compare.compare_selected(trace, exact, config.top_k),
        "experts": compare.compare_experts(trace, exact, config.experts_per_token),
        "greedy": compare.compare_greedy(trace.logits, exact.logits, MARGIN_IN_ERRORS),
        "layers": sorted(trace.outputs) == list(range(config.layers)),
    }


def failures(numbers):
    """What is wrong, in words; an empty list when nothing is."""
    wrong = []
    if not numbers["layers"]:
        wrong.append("the trace lacks outputs of layers")
    if not numbers["error"] <= numbers["bound"]:
        wrong.append(f"logits err by {numbers['error']:.4g}, a bf16 PyTorch run by {numbers['bound']:.4g}")
    for kind, limit in (("keys", KEY_GAP), ("experts", EXPERT_GAP)):
        for i, sets in numbers[kind].items():
            if not sets.largest_gap < limit:
                wrong.append(f"layer {i}: {kind} differ over a score gap of {sets.largest_gap:.3g} deviations")
            if sets.overlap < OVERLAP:
                wrong.append(f"layer {i}: only {sets.overlap:.3f} of the {kind} are the oracle's")
    greedy = numbers["greedy"]
    if greedy.agree < 1:
        wrong.append(f"greedy tokens agree in {greedy.agree:.4f} of the rows with a margin over {greedy.epsilon:.3g}")
    if greedy.compared < GREEDY_SHARE:
        wrong.append(f"only {greedy.compared:.3f} of the rows have a margin over {greedy.epsilon:.3g}")
    return wrong
