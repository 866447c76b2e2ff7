"""Agents: three to eight turns with tools declared once, results, errors from tools, parallel calls, and no tool that fits.

Also single requests among six to eight tools, with arguments that are given only when asked for.
"""
import json

from . import replies, toolcalls
from .split import EVAL, TRAIN, draw
from .words import join_and

# kind -> (names, type, descriptions, values, phrase): arguments that a request may add to the catalogue's own
kOptional = {
    "weather": (["unit", "units"], "string", ["Temperature unit", "celsius or fahrenheit"], ["celsius", "fahrenheit"], " in {}"),
    "search": (["limit", "max_results"], "number", ["Most results", "How many results"], [3, 5, 10, 20, 50], " with at most {} results"),
    "timer": (["label", "name"], "string", ["Name of the timer", "A label"], ["tea", "eggs", "pizza", "laundry", "break"], " called {}"),
    "reminder": (["hour", "at"], "number", ["Hour of the day", "At what hour"], [7, 8, 9, 12, 15, 18, 20], " at {} o'clock"),
    "light": (["color", "colour"], "string", ["Color of the light", "Which color"], ["warm", "red", "blue", "green"], " in {}"),
    "stock": (["market", "place"], "string", ["Stock market", "Which market"], ["London", "Paris", "Tokyo", "Zurich"], " on the {} market"),
}
kErrors = ["error: not found", "error: service unavailable", "error: permission denied", "error: no data", "error: invalid value"]
kRetry = ["error: timeout, try again", "error: busy, try again", "error: rate limit, try again"]
kNoTool = "I have no tool for that."


def _declare(rng, kinds):
    """kind -> (tool, name, argument names, optional argument or None), and the shuffled tools."""
    declared = {}
    for kind in kinds:
        tool, name, arguments = toolcalls._declare(rng, kind)
        extra = None
        properties = tool["function"]["parameters"]["properties"]
        if kind == "weather":  # the days that a request may name are always declared here
            properties.setdefault(arguments[1], {"type": "number"})
            properties.pop("unit", None)
        if kind in kOptional and rng.random() < 0.7:
            names, type_name, texts, _, _ = kOptional[kind]
            extra = rng.choice(names)
            properties[extra] = {"type": type_name, "description": rng.choice(texts)}
        declared[kind] = (tool, name, arguments, extra)
    tools = [d[0] for d in declared.values()]
    rng.shuffle(tools)
    return declared, tools


def _requests(rng, split, kinds, count, request=toolcalls._request):
    """count requests of these kinds, held out or trained as the tools suite does."""
    def sample(rng):
        chosen = rng.sample(kinds, min(count, len(kinds))) if rng.random() < 0.5 else [rng.choice(kinds)] * count
        requests = [(kind,) + request(rng, kind) for kind in chosen]
        return "tools:" + "|".join(r[1] for r in requests), requests
    return draw(rng, split, sample)


def _calls(rng, requests, declared):
    """(calls, phrases): optional arguments join some of them."""
    calls, phrases = [], []
    for i, (kind, _, phrase, values, *_rest) in enumerate(requests):
        _, name, names, extra = declared[kind]
        arguments = {k: v for k, v in zip(names, values) if v is not None}
        if extra and rng.random() < 0.5:
            value = rng.choice(kOptional[kind][3])
            arguments[extra] = value
            phrase += kOptional[kind][4].format(value)
        phrases.append(phrase)
        calls.append({"id": f"call_{i + 1}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}})
    return calls, phrases


def _call_message(requests, calls, again=False):
    names = join_and(list(dict.fromkeys(c["function"]["name"] for c in calls)))
    thought = f"I will try {names} again." if again else f"{join_and([r[4] for r in requests])}: I will call {names}."
    return {"role": "assistant", "reasoning_content": thought, "content": "", "tool_calls": calls}


def _results(calls, texts):
    return [{"role": "tool", "tool_call_id": c["id"], "content": t} for c, t in zip(calls, texts)]


def choice(rng, split):
    """(key, messages, tools): one or two calls among six to eight tools."""
    kinds = rng.sample(toolcalls.kKinds, rng.randint(6, 8))
    key, requests = _requests(rng, split, kinds, rng.choice((1, 2, 2)))
    declared, tools = _declare(rng, kinds)
    calls, phrases = _calls(rng, requests, declared)
    messages = [{"role": "user", "content": toolcalls._sentence(rng, phrases)}, _call_message(requests, calls)]
    if rng.random() < 0.2 and split == TRAIN:
        messages += _results(calls, [r[5] for r in requests])
        messages.append({"role": "assistant", "reasoning_content": "I have the results.", "content": ". ".join(r[6] for r in requests) + "."})
    return key, messages, tools


def _turn(rng, split, kinds, declared):
    """(key, messages) of one user turn with everything that follows from it."""
    others = [k for k in toolcalls.kKinds if k not in kinds]
    if others and rng.random() < 0.15:
        key, requests = _requests(rng, split, others, 1)
        return key, [{"role": "user", "content": toolcalls._sentence(rng, [requests[0][2]])},
                     {"role": "assistant", "reasoning_content": f"{requests[0][4]}: no tool fits.", "content": kNoTool}]
    key, requests = _requests(rng, split, kinds, rng.choice((1, 1, 2)))
    calls, phrases = _calls(rng, requests, declared)
    messages = [{"role": "user", "content": toolcalls._sentence(rng, phrases)}, _call_message(requests, calls)]
    texts, says = [r[5] for r in requests], [r[6] for r in requests]
    if rng.random() < 0.2:
        failed = rng.randrange(len(calls))
        if rng.random() < 0.5:
            first = list(texts)
            first[failed] = rng.choice(kRetry)
            again = [dict(calls[failed], id="call_1")]
            messages += _results(calls, first) + [_call_message(None, again, again=True)] + _results(again, [texts[failed]])
        else:
            texts[failed] = rng.choice(kErrors)
            says[failed] = f"The {calls[failed]['function']['name']} tool failed: {texts[failed].removeprefix('error: ')}"
            messages += _results(calls, texts)
    else:
        messages += _results(calls, texts)
    messages.append({"role": "assistant", "reasoning_content": "I have the results.", "content": ". ".join(says) + "."})
    return key, messages


def _open_turn(rng, split, kinds, declared):
    """A turn whose words are not from lists, and that may ask a plain question."""
    others = [k for k in toolcalls.kKinds if k not in kinds]
    if others and rng.random() < 0.08:
        key, requests = _requests(rng, split, others, 1, replies.request)
        return key, [{"role": "user", "content": _asked(rng, requests, [requests[0][2]])},
                     {"role": "assistant", "reasoning_content": f"{requests[0][4]}: no tool fits.", "content": kNoTool}]
    key, requests = _requests(rng, split, kinds, rng.choice((1, 1, 1, 2)), replies.request)
    calls, phrases = _calls(rng, requests, declared)
    messages = [{"role": "user", "content": _asked(rng, requests, phrases)}, _call_message(requests, calls)]
    texts, says = [r[5] for r in requests], [r[6] for r in requests]
    failed = rng.randrange(len(calls)) if rng.random() < 0.2 else None
    if failed is not None and rng.random() < 0.25:
        first = list(texts)
        first[failed] = rng.choice(replies.kRetry)
        again = [dict(calls[failed], id="call_1")]
        messages += _results(calls, first) + [_call_message(None, again, again=True)] + _results(again, [texts[failed]])
    else:
        if failed is not None:
            texts[failed] = replies.error(rng, calls[failed])
            says[failed] = f"The {calls[failed]['function']['name']} tool failed: {texts[failed].removeprefix('error: ')}"
        messages += _results(calls, texts)
    messages.append({"role": "assistant", "reasoning_content": "I have the results.", "content": ". ".join(says) + "."})
    return key, messages


def _asked(rng, requests, phrases):
    """The sentence of a user: a plain question where one is natural and says no more than the request."""
    plain = len(requests) == 1 and phrases[0] == requests[0][2] and rng.random() < 0.5
    return (plain and toolcalls._short_question(rng, requests[0][0], requests[0][3])) or toolcalls._sentence(rng, phrases)


def conversation(rng, split):
    """(keys, messages, tools): the assistant speaks three to eight times."""
    kinds = rng.sample(toolcalls.kKinds, rng.randint(2, 4))
    declared, tools = _declare(rng, kinds)
    wanted, keys, messages = rng.randint(3, 8), [], []
    while sum(m["role"] == "assistant" for m in messages) < wanted:
        key, more = _turn(rng, split, kinds, declared)
        if sum(m["role"] == "assistant" for m in messages + more) > 8:
            break
        keys.append(key)
        messages += more
    return keys, messages, tools


def open_conversation(rng, split):
    """A conversation in which requests, results and errors are of an open vocabulary (replies.py)."""
    kinds = rng.sample(toolcalls.kKinds, rng.randint(2, 5))
    declared, tools = _declare(rng, kinds)
    keys, messages = [], []
    for _ in range(rng.randint(1, 4)):
        key, more = _open_turn(rng, split, kinds, declared)
        keys.append(key)
        messages += more
    return keys, messages, tools


def _answer(message):
    if message.get("tool_calls"):
        return {"type": "tool_calls", "calls": [{"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])}
                                                for c in message["tool_calls"]]}
    return {"type": "text", "text": message["content"]}


def script(messages):
    """[(messages before the assistant speaks, its answer, its thought)]"""
    steps, before = [], []
    for m in messages:
        if m["role"] == "assistant":
            steps.append((before, _answer(m), m["reasoning_content"]))
            before = []
        else:
            before.append(m)
    return steps


def choice_items(rng, count):
    items = []
    for _ in range(count):
        _, messages, tools = choice(rng, EVAL)
        (before, answer, thought), = script(messages)
        items.append({"messages": before, "tools": tools, "thinking": True, "max_tokens": 240, "answer": answer, "thought": thought})
    return items


def agent_items(rng, count):
    """"then" holds the later turns: what is said to the assistant after its answer, and what it must answer to that."""
    items = []
    while len(items) < count:
        _, messages, tools = conversation(rng, EVAL)
        steps = script(messages)
        if len(steps) < 3:
            continue
        (before, answer, thought), *rest = steps
        items.append({"messages": before, "tools": tools, "thinking": True, "max_tokens": 240, "answer": answer, "thought": thought,
                      "then": [{"messages": b, "answer": a, "thought": t} for b, a, t in rest]})
    return items
