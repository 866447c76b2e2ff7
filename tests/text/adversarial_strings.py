"""Seeded strings that try to make two tokenizers differ: every Unicode category, scripts at the pattern's seams, white
space of every kind, contractions, digits, control-token names, emoji sequences and combining marks."""

import random
import unicodedata

WORDS = ("the of and to in is that it was for on are with as his they be at one have this from or had by hot but some what "
         "there we can out other were all your when up use word how said an each she which do their time if will way about "
         "don't we've they'll I'm he'd it's you're O'Neil DON'T We'Re JavaScript HTTPServer camelCase snake_case naïve café "
         "straße Ωmega int main() { return 0; } std::vector<int> 3.14159 2026-11-30 1234567 http://a.b/c?d=e&f #include").split()
SEAMS = ["'s", "'S", "'ſ", "'t", "'re", "'RE", "'rE", "'ve", "'m", "'ll", "'lL", "'d", "'x", "''", "’s", "'r", "'l", "' s",
         "\u180e", "\u0085", "\u00a0", "\u2028", "\u2029", "\u3000", "\u200b", "\u200d", "\ufeff", "\u001c", "\u001f", "\x00",
         "\x7f", "々", "〇", "〻", "〡", "〸", "、", "。", "⺀", "⼀", "㐀", "豈", "𠀀", "𖿰", "あ", "ア", "ー", "한", "ㄅ", "ａ", "Ａ",
         "ǅ", "ʰ", "ª", "º", "Ⅷ", "²", "½", "٣", "०", "𝟘", "\u0301", "\u0903", "\u20dd", "\ufe0f", "\u064b", "ß", "İ", "ı",
         "\u212a", "ſ", "<|open|>", "<|close|>", "<|sep|>", "[EOS]", "[BOS]", "<|end_of_msg|>", "<|im_end|>",
         "🙂", "👍🏽", "👩‍👩‍👧‍👦", "🇫🇷", "1️⃣", "\U0010fffd", "\ue000", "\ufffd"]
SPACES = [" ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\v", "\f", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028"]


class Strings:
    def __init__(self, points, seed):
        self.random = random.Random(seed)
        self.points = points
        self.by_category = {}
        for point in points:
            self.by_category.setdefault(unicodedata.category(chr(point)), []).append(point)
        self.by_category.pop("Cs", None)
        self.categories = sorted(self.by_category)
        self.cjk = [p for p in points if 0x2E80 <= p <= 0x9FFF]
        self.marks = [p for c in ("Mn", "Mc", "Me") for p in self.by_category[c]]
        self.emoji = [p for p in points if 0x1F300 <= p <= 0x1FAFF or 0x2600 <= p <= 0x27BF]
        self.kinds = [self.words, self.any_category, self.ascii, self.seams, self.cjk_text, self.marked, self.emoji_text,
                      self.white, self.one_category, self.mixture, self.soup]

    def pick(self, points, low, high):
        return "".join(chr(self.random.choice(points)) for _ in range(self.random.randint(low, high)))

    def words(self):
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.randint(1, 40)))

    def any_category(self):
        r = self.random
        return "".join(chr(r.choice(self.by_category[r.choice(self.categories)])) for _ in range(r.randint(1, 40)))

    def one_category(self):
        return self.pick(self.by_category[self.random.choice(self.categories)], 1, 30)

    def ascii(self):
        return "".join(chr(self.random.randrange(128)) for _ in range(self.random.randint(1, 60)))

    def soup(self):
        """Few symbols, so that every short context occurs."""
        return "".join(self.random.choice("aZ'sTl 1\n\r\t.é中ª\u0301\u00a0") for _ in range(self.random.randint(1, 24)))

    def seams(self):
        r = self.random
        return "".join(r.choice((r.choice(SEAMS), r.choice(WORDS), r.choice(SPACES), r.choice("aZ0.")))
                       for _ in range(r.randint(1, 24)))

    def cjk_text(self):
        return self.pick(self.cjk, 1, 40)

    def marked(self):
        r = self.random
        return "".join(r.choice("aeiouXYZ1 .") + self.pick(self.marks, 0, 3) for _ in range(r.randint(1, 20)))

    def emoji_text(self):
        r = self.random
        return "".join(chr(r.choice(self.emoji)) + r.choice(("", "", "\u200d", "\ufe0f", "\U0001f3fd", " "))
                       for _ in range(r.randint(1, 20)))

    def white(self):
        r = self.random
        return "".join(r.choice(SPACES) * r.choice((1, 1, 2, 3, 17)) + r.choice(("", "", "x", "1", ".", "中"))
                       for _ in range(r.randint(1, 16)))

    def mixture(self):
        r = self.random
        return "".join(r.choice(self.kinds[:9])() for _ in range(r.randint(2, 4)))

    def next(self):
        return self.random.choice(self.kinds)()


def long_strings(seed=7):
    """Inputs at the edges of the long-input guard, and the longest words."""
    r = random.Random(seed)
    yield "a" * 24_999
    yield "a" * 25_000 + "b"
    yield " " * 25_000
    yield " " * 25_001 + "x"
    yield " " * 60_000
    yield "\n" * 30_000 + " x"
    yield "\t \n" * 20_000
    yield "中" * 60_000
    yield "é" * 30_000
    yield "A" * 30_000
    yield "\u0301" * 30_000
    yield "!" * 30_000
    yield "7" * 30_000
    yield "🙂" * 26_000
    yield "\x1c" * 30_000 + "a" * 30_000
    yield "".join(r.choice("abcdefghij") for _ in range(100_000))
    yield "".join(r.choice("abcdefghij ") for _ in range(450_000))
    yield "".join(r.choice(WORDS) + " " for _ in range(120_000))
    yield "word " * 80_000 + "tail of the first part"
    yield "".join(r.choice("aé中🙂 ") for _ in range(820_000))
    yield "q" * 1_000_000
