"""Documents to token ids with loss weights, and eval items to prompts."""
import re

import xtml

kContextWeight = 0.08


def _known_apart(segments, pattern):
    """The segments with the words that the words before them tell as segments of their own: (segment, known?) ...

    The cuts lie where the tokenizer cuts anyway, so the tokens are the same.
    """
    for text, is_control in segments:
        at = 0
        for match in () if is_control else re.finditer(pattern, text):
            begin, end = match.span(match.lastindex)
            yield (text[at:begin], False), False
            yield (text[begin:end], False), True
            at = end
        yield (text[at:], is_control), False


def document(tokenizer, doc):
    """(ids, weight of each id as a target); the weights are 1 on what the assistant writes and on known words of a text."""
    context = doc["context_weight"] if doc.get("context_weight") is not None else kContextWeight
    ids, weights = [], []
    for segments, is_answer in xtml.render(doc["messages"], doc["tools"], doc["thinking"], doc["effort"], doc["response_format"]):
        if doc.get("known") and not is_answer:
            pieces = [([segment], known) for segment, known in _known_apart(segments, doc["known"])]
        else:
            pieces = [(segments, is_answer)]
        for piece, counts in pieces:
            part = tokenizer.encode(piece)
            ids += part
            weights += [1.0 if counts else context] * len(part)
    return ids, weights


def prompt(tokenizer, item):
    ids = []
    for segments, _ in xtml.render(item["messages"], item.get("tools"), item["thinking"]):
        ids += tokenizer.encode(segments)
    return ids + tokenizer.encode(xtml.generation_prompt(item["thinking"]))
