"""What counts as a leak: a held-out prompt or conversation, or a held-out sum in any wording, inside a training document.

Works on texts alone, without the generators' own idea of what is held out.
"""
import re


def turns(messages):
    """(user text, tool results after it, what was said before it) of every place where the assistant speaks."""
    user, results, previous = "", [], ""
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "user":
            user, results = content, []
        elif role == "tool":
            results.append(content)
        elif role == "assistant":
            yield user, tuple(results), previous, content
            previous = content
    if messages[-1]["role"] != "assistant":
        yield user, tuple(results), previous, None


def _last(iterable):
    *_, last = iterable
    return last


def _talk(messages):
    return tuple((m["role"], m["content"]) for m in messages if m["role"] in ("user", "tool"))


def sum_of(user, previous, answer):
    """(operands, answer) of a question about two numbers with an integer answer; a single number goes on from the last answer."""
    numbers = [int(n) for n in re.findall(r"\d+", user)]
    if len(numbers) == 1 and re.fullmatch(r"-?\d+", previous or ""):
        numbers.append(int(previous))
    if len(numbers) == 2 and answer is not None and re.fullmatch(r"-?\d+", answer.strip()):
        return tuple(sorted(numbers)), int(answer)
    return None


class HeldOut:
    def __init__(self, suites):
        """suites: name -> eval items, documents in place"""
        self.prompts, self.sums, self.talks = {}, {}, {}
        for items in suites.values():
            for item in items:
                if "then" in item:  # a conversation is held out as a whole: single requests recur in any context
                    self.talks[_talk(item["messages"] + [m for t in item["then"] for m in t["messages"]])] = item["id"]
                    continue
                user, results, _, _ = _last(turns(item["messages"]))
                self.prompts[user, results] = item["id"]
        for item in suites.get("arithmetic", []):
            self.sums[sum_of(item["messages"][-1]["content"], None, item["answer"]["text"])] = item["id"]

    def leaks(self, document):
        """Ids of the eval items that this training document gives away."""
        found = [self.talks.get(_talk(document["messages"]))]
        for user, results, previous, answer in turns(document["messages"]):
            found.append(self.prompts.get((user, results)))
            found.append(self.sums.get(sum_of(user, previous, answer)))
        return [f for f in found if f]
