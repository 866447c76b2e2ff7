"""The tokenizer: trains a byte-level BPE on the synthetic corpus, writes tiktoken.model, and encodes segments.

3,840 ranks and then the 256 control slots of K3. Digits are never merged, so that columns of a sum stay columns.
"""
import base64
import collections
import functools
import json

import regex
import tiktoken

kBaseRanks = 3840
kVocab = kBaseRanks + 256
kPattern = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

# Offsets of the named control slots; special:false ones survive skip_special_tokens and are parsed.
kControls = {0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|end_of_msg|>", True), 3: ("<|open|>", False), 4: ("<|close|>", False),
             5: ("<|sep|>", False), 6: ("[start_header_id]", True), 7: ("[end_header_id]", True), 9: ("[EOT]", True),
             18: ("<|media_begin|>", True), 19: ("<|media_content|>", True), 20: ("<|media_end|>", True), 21: ("<|media_pad|>", True),
             65: ("<osagent_mode>", True), 254: ("[UNK]", True), 255: ("[PAD]", True)}
kEndOfMessage, kEos, kPad = kBaseRanks + 2, kBaseRanks + 1, kBaseRanks + 255


def control_names():
    return {kBaseRanks + k: kControls.get(k, (f"<|reserved_token_{kBaseRanks + k}|>", True)) for k in range(256)}


def train_ranks(texts, ranks=kBaseRanks):
    """Greedy pair merging over counted pre-tokens; returns the byte strings in rank order."""
    words = collections.Counter()
    split = regex.compile(kPattern, regex.V1)
    for text, count in collections.Counter(texts).items():
        for piece in split.findall(text):
            if not piece[0].isdigit():
                words[piece.encode()] += count
    pieces = [bytes([b]) for b in range(256)]
    parts = [[bytes([b]) for b in word] for word in words]
    counts = list(words.values())
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for w, part in enumerate(parts):
        for pair in zip(part, part[1:]):
            pairs[pair] += counts[w]
            where[pair].add(w)
    known = set(pieces)
    while len(pieces) < ranks:
        best = max(pairs.items(), key=lambda item: (item[1], item[0]), default=(None, 0))
        if best[1] <= 0:
            raise RuntimeError(f"the corpus holds only {len(pieces)} pieces")
        pair = best[0]
        merged = pair[0] + pair[1]
        if merged not in known:
            known.add(merged)
            pieces.append(merged)
        for w in where.pop(pair):
            part = parts[w]
            for old in zip(part, part[1:]):
                pairs[old] -= counts[w]
            i = 0
            while i < len(part) - 1:
                if (part[i], part[i + 1]) == pair:
                    part[i:i + 2] = [merged]
                i += 1
            for new in zip(part, part[1:]):
                pairs[new] += counts[w]
                where[new].add(w)
        del pairs[pair]
    return pieces


def write(folder, pieces):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(pieces)]
    (folder / "tiktoken.model").write_text("".join(lines))
    added = {str(i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": special}
             for i, (name, special) in control_names().items() if not name.startswith("<|reserved")}
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "added_tokens_decoder": added, "additional_special_tokens": [], "bos_token": "[BOS]", "clean_up_tokenization_spaces": False,
        "eos_token": "[EOS]", "model_max_length": 1048576, "pad_token": "[PAD]", "tokenizer_class": "TikTokenTokenizer",
        "unk_token": "[UNK]"}, indent=1) + "\n")


class Tokenizer:
    def __init__(self, folder):
        lines = (folder / "tiktoken.model").read_text().splitlines()
        ranks = {base64.b64decode(piece): int(rank) for piece, rank in (line.split() for line in lines)}
        self.controls = {name: i for i, (name, _) in control_names().items()}
        self._encoding = tiktoken.Encoding("demo", pat_str=kPattern, mergeable_ranks=ranks, special_tokens=self.controls)
        self._encode = functools.lru_cache(maxsize=200_000)(self._encoding.encode_ordinary)

    def encode(self, segments):
        ids = []
        for text, is_control in segments:
            if is_control:
                ids.append(self.controls[text])
            elif text:
                ids += self._encode(text) if len(text) < 2000 else self._encoding.encode_ordinary(text)
        return ids

    def decode(self, ids):
        return self._encoding.decode(ids)
