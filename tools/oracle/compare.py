"""How far a trace of the engine is from the fp64 oracle that was given its selections, in the numbers the tests bound."""

from dataclasses import dataclass

import numpy as np

from . import dsa, moe


def relative_l2(x, exact):
    return float(np.linalg.norm(x - exact) / np.linalg.norm(exact))


@dataclass
class Sets:
    """How chosen sets differ from the oracle's own. A gap: the oracle's score of the best one left out less that of the
    worst one taken, in standard deviations of the row's scores."""

    largest_gap: float
    overlap: float  # share of elements in both, over rows that have a choice
    differing_rows: int
    rows: int


def check_well_formed(chosen, available, k):
    """chosen [T, k] ascending and unique, -1 padded; available [T]: how many candidates each row has."""
    assert chosen.shape == (len(available), k), f"shape {chosen.shape}, expected {(len(available), k)}"
    for t, row in enumerate(chosen):
        count = min(k, available[t])
        taken = row[:count]
        assert np.all(row[count:] == -1), f"row {t}: expected {count} entries, then -1"
        assert np.all(np.diff(taken) > 0) and taken[0] >= 0 and taken[-1] < available[t], f"row {t}: {taken}"


def compare_sets(chosen, own, scores):
    """chosen, own [T, k] with -1 padding; scores [T, n], -inf where there is nothing to choose."""
    gaps, shared, total, rows = [0.0], 0, 0, 0
    for t in range(len(chosen)):
        candidates = scores[t][np.isfinite(scores[t])]
        if len(candidates) <= chosen.shape[1]:
            continue
        rows += 1
        total += chosen.shape[1]
        shared += len(np.intersect1d(chosen[t], own[t]))
        left_out, taken_instead = np.setdiff1d(own[t], chosen[t]), np.setdiff1d(chosen[t], own[t])
        if len(left_out):
            gaps.append((scores[t, left_out].max() - scores[t, taken_instead].min()) / candidates.std())
    return Sets(float(max(gaps)), shared / max(total, 1), len(gaps) - 1, rows)


def compare_selected(engine, exact, top_k):
    """By DSA layer: Sets of the keys."""
    result = {}
    for i, scores in exact.index_scores.items():
        check_well_formed(engine.selected[i], np.arange(1, len(scores) + 1), top_k)
        result[i] = compare_sets(engine.selected[i], dsa.select(scores, top_k), scores)
    return result


def compare_experts(engine, exact, k):
    """By MoE layer: Sets of the experts."""
    result = {}
    for i, choice in exact.choice_scores.items():
        check_well_formed(engine.experts[i], np.full(len(choice), choice.shape[1]), k)
        result[i] = compare_sets(engine.experts[i], moe.route(choice, k), choice)
    return result


@dataclass
class Greedy:
    compared: float  # share of rows whose top-1 margin exceeds epsilon
    agree: float  # share of those with the same argmax
    epsilon: float


def compare_greedy(logits, exact, margin_in_errors):
    """epsilon is `margin_in_errors` times the rms error of a logit."""
    epsilon = margin_in_errors * float(np.sqrt(np.mean((logits - exact) ** 2)))
    top = np.sort(exact, axis=1)
    clear = top[:, -1] - top[:, -2] > epsilon
    agree = exact.argmax(1)[clear] == logits.argmax(1)[clear]
    return Greedy(float(clear.mean()), float(agree.mean()) if clear.any() else 0.0, epsilon)
