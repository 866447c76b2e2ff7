"""The chat format against published token ids of the real vocabulary: segments, order and attributes, not merges.

The pieces below are all that these vectors need; each text segment is cut greedily, longest piece first.
"""
import pytest

import xtml

kPieces = {
    'message': 2778, ' role': 6244, '="': 878, 'user': 2482, '"': 1, 'Hi': 18699, 'assistant': 69702, 'think': 39964,
    'response': 12092, 'tools': 25385, 'call': 10257, ' it': 483, ' tool': 4453, 'get': 618, '_we': 21055, 'ather': 2800,
    ' index': 4002, '1': 16, 'argument': 47185, ' key': 2355, 'city': 37666, ' type': 1798, 'string': 2033, 'Paris': 113476,
    'days': 21030, 'number': 10006, '3': 18, 'tool': 20960, '18': 1428, 'C': 34,
}
kControls = {"<|end_of_msg|>": 163586, "<|open|>": 163587, "<|close|>": 163588, "<|sep|>": 163589}


def ids_of(segments):
    out = []
    for text, is_control in segments:
        if is_control:
            out.append(kControls[text])
        while text and not is_control:
            piece = max((p for p in kPieces if text.startswith(p)), key=len)
            out.append(kPieces[piece])
            text = text[len(piece):]
    return out


kUser = [{"role": "user", "content": "Hi"}]
kCall = {"role": "assistant", "reasoning_content": "call it", "content": "", "tool_calls": [
    {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris","days":3}'}}]}
kPrompt = [
      163587, 2778, 6244, 878, 2482, 1, 163589, 18699, 163588, 2778, 163589, 163586, 163587, 2778, 6244, 878, 69702, 1,
      163589, 163587, 39964, 163589,
]
kCallIds = [
      163587, 2778, 6244, 878, 69702, 1, 163589, 163587, 39964, 163589, 10257, 483, 163588, 39964, 163589, 163587, 12092,
      163589, 163588, 12092, 163589, 163587, 25385, 163589, 163587, 10257, 4453, 878, 618, 21055, 2800, 1, 4002, 878, 16, 1,
      163589, 163587, 47185, 2355, 878, 37666, 1, 1798, 878, 2033, 1, 163589, 113476, 163588, 47185, 163589, 163587, 47185,
      2355, 878, 21030, 1, 1798, 878, 10006, 1, 163589, 18, 163588, 47185, 163589, 163588, 10257, 163589, 163588, 25385,
      163589, 163588, 2778, 163589, 163586,
]
kResultIds = [
      163587, 2778, 6244, 878, 20960, 1, 4453, 878, 618, 21055, 2800, 1, 4002, 878, 16, 1, 163589, 1428, 34, 163588, 2778,
      163589, 163586,
]


@pytest.mark.parametrize("thinking", [True, False])
def test_prompt(thinking):
    parts = [s for segments, _ in xtml.render(kUser, thinking=thinking) for s in segments]
    expected = kPrompt if thinking else kPrompt[:-2] + [kPieces["response"], kControls["<|sep|>"]]
    assert ids_of(parts + xtml.generation_prompt(thinking)) == expected


def test_tool_round_trip():
    parts = list(xtml.render([kCall, {"role": "tool", "tool_call_id": "a", "content": "18C"}]))
    assert ids_of(parts[0][0]) + ids_of(parts[1][0]) == kCallIds
    assert [is_answer for _, is_answer in parts] == [False, True, False]
    assert ids_of(parts[2][0]) == kResultIds


def test_user_text_cannot_open_a_message_and_attributes_are_escaped():
    segments = next(xtml.render([{"role": "user", "content": "<|open|>"}]))[0]
    assert ("<|open|>", False) in segments
    assert ("a&quot;&amp;b", False) in xtml._open("call", tool='a"&b')


def test_parse_reads_back_what_was_rendered():
    text = "".join(t for t, _ in xtml.assistant_body(kCall, True)).removesuffix("<|end_of_msg|>")
    assert xtml.parse(text) == {"reasoning": "call it", "content": "",
                                "calls": [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]}
    assert xtml.parse(text[:-4]) is None
