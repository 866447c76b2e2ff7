"""The chat format of Kimi K3 (XTML): messages to segments (text, is_control), and generated ids back to an answer.

Every segment is tokenised alone; control segments become control tokens and nothing a user types can become one.
"""
import json

kTools = ("# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```")
kEffort = ("`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), supported "
           "values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort={}`.")
kJsonObject = ("The system is invoked with `response_format=json_object`.\nYour response must be raw JSON data without markdown code "
               "blocks (```json) or any additional formatting.")


def _open(tag, **attributes):
    out = [("<|open|>", True), (tag, False)]
    for key, value in attributes.items():
        escaped = str(value).replace("&", "&amp;").replace('"', "&quot;")
        out += [(" " + key, False), ('="', False), (escaped, False), ('"', False)]
    return out + [("<|sep|>", True)]


def _close(tag):
    return [("<|close|>", True), (tag, False), ("<|sep|>", True)]


def _message(body, **attributes):
    return _open("message", **attributes) + [(body, False)] + _close("message") + [("<|end_of_msg|>", True)]


def _sorted_deep(value):
    if isinstance(value, dict):
        return {k: _sorted_deep(value[k]) for k in sorted(value)}
    return [_sorted_deep(v) for v in value] if isinstance(value, list) else value


def _type_of(value):
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    return {int: "number", float: "number", str: "string", dict: "object", list: "array"}[type(value)]


def _call(index, function):
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments or "{}")
    out = _open("call", tool=function["name"], index=index)
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        out += _open("argument", key=key, type=_type_of(value)) + [(text, False)] + _close("argument")
    return out + _close("call")


def generation_prompt(thinking):
    return _open("message", role="assistant") + _open("think" if thinking else "response")


def assistant_body(message, thinking):
    """What the model writes after its generation prompt."""
    out = []
    if thinking:
        out += [(message.get("reasoning_content") or "", False)] + _close("think") + _open("response")
    out += [(message.get("content") or "", False)] + _close("response")
    if message.get("tool_calls"):
        out += _open("tools")
        for index, call in enumerate(message["tool_calls"], 1):
            out += _call(index, call["function"])
        out += _close("tools")
    return out + _close("message") + [("<|end_of_msg|>", True)]


def render(messages, tools=None, thinking=True, effort=None, response_format=None):
    """Yields (segments, is_answer) parts of a conversation, in order. A prompt still needs generation_prompt()."""
    if tools:
        body = kTools.format(json.dumps(_sorted_deep(tools), ensure_ascii=False, separators=(",", ":")))
        yield _message(body, role="system", type="tool-declare"), False
    if thinking and effort:
        yield _message(kEffort.format(effort), role="system", type="thinking-effort"), False
    calls, tool_index = {}, 0
    for position, message in enumerate(messages):
        role = message["role"]
        if response_format and role == "assistant" and position == len(messages) - 1:
            yield _message(kJsonObject, role="system", type="response-format"), False
        if role == "assistant":
            calls = {c["id"]: c["function"]["name"] for c in message.get("tool_calls") or []}
            tool_index = 0
            yield generation_prompt(thinking), False
            yield assistant_body(message, thinking), True
        elif role == "tool":
            tool_index += 1
            yield _message(message["content"], role="tool", tool=calls[message["tool_call_id"]], index=tool_index), False
        else:
            yield _message(message["content"].strip() if role == "system" else message["content"], role=role), False
    if response_format and messages[-1]["role"] != "assistant":
        yield _message(kJsonObject, role="system", type="response-format"), False


def parse(text, thinking=True):
    """Generated text with control tokens spelled out -> {"reasoning", "content", "calls"}; None where it breaks the grammar."""
    def between(s, tag):
        head, found, tail = s.partition(f"<|close|>{tag}<|sep|>")
        if not found:
            raise ValueError(tag)
        return head, tail
    try:
        reasoning = ""
        if thinking:
            reasoning, text = between(text, "think")
            text = text.removeprefix("<|open|>response<|sep|>")
        content, text = between(text, "response")
        calls = []
        if text.startswith("<|open|>tools<|sep|>"):
            body, text = between(text.removeprefix("<|open|>tools<|sep|>"), "tools")
            while body:
                head, body = between(body, "call")
                name, _, rest = head.partition("<|sep|>")
                arguments = {}
                while rest:
                    one, rest = between(rest, "argument")
                    attributes, _, value = one.partition("<|sep|>")
                    kind = attributes.split(' type="')[1].split('"')[0]
                    arguments[attributes.split(' key="')[1].split('"')[0]] = value if kind == "string" else json.loads(value)
                calls.append({"name": name.split(' tool="')[1].split('"')[0], "arguments": arguments})
        if not text.startswith("<|close|>message<|sep|>"):
            return None
        return {"reasoning": reasoning, "content": content, "calls": calls}
    except (ValueError, IndexError, KeyError):
        return None
