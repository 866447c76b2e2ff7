"""Documents to token ids with loss weights, and eval items to prompts."""
import xtml

kContextWeight = 0.08


def document(tokenizer, doc):
    """(ids, weight of each id as a target); the weights are 1 on what the assistant writes."""
    context = doc["context_weight"] if doc.get("context_weight") is not None else kContextWeight
    ids, weights = [], []
    for segments, is_answer in xtml.render(doc["messages"], doc["tools"], doc["thinking"], doc["effort"], doc["response_format"]):
        part = tokenizer.encode(segments)
        ids += part
        weights += [1.0 if is_answer else context] * len(part)
    return ids, weights


def prompt(tokenizer, item):
    ids = []
    for segments, _ in xtml.render(item["messages"], item.get("tools"), item["thinking"]):
        ids += tokenizer.encode(segments)
    return ids + tokenizer.encode(xtml.generation_prompt(item["thinking"]))
