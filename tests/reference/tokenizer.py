#!/usr/bin/env python3
"""Makes tests/data/tokenizer.json: what the `tokenizers` library makes of both tokenizers.

Texts are stored; ids come from splitmix64, here and in tests/unit/test_tokenizer.c alike; results are CRC-32s, the first
few in full. Run it from the root of the repository; it needs `tokenizers`.
"""
import array
import gzip
import hashlib
import json
import random
import unicodedata
import zlib

import tokenizers

OUT = "tests/data/tokenizer.json"
FILES = {"tiny": "tests/data/tiny-reader/tokenizer.json", "qwen": "tests/data/qwen3-tokenizer.json.gz"}
EXTRA = 267  # rows of an embedding behind the last token, as LightOnOCR-2 has them
PROMPT = "<|im_start|>system<|im_end|>\n<|im_start|>user\n" + 3 * "<|image_pad|>" + "<|im_end|>\n<|im_start|>assistant\n"
CHUNK = 512
FULL = 20
MASK = (1 << 64) - 1

WORDS = """the of invoice Total don't I'LL WE'VE it's 'Tis they'd can'T 'ſ 'ſabc 'S x's x'SAFE é’s naïve Straße ŒUVRE Ångström coöperate
señor façade Zürich łódź Žižek İstanbul Ελληνικά Ἀθῆναι Москва українська Ѐ Ա հայերեն עברית שָׁלוֹם العربية مرحبًا हिन्दी
नमस्ते বাংলা ไทย ภาษา ກ 中文 漢字 日本語 ひらがな カタカナ ﾊﾝｶｸ 한국어 각 ﬁn ﬀ Ⅷ ⅷ ½ ¾ ² ₂ ① 〇 ٣٤٥ ४२ ๕ 12 345.67 1,000 2024-12-31 0x1F
3.14e-10 № § © ™ € £ ¥ ° … – — “quoted” «guillemets» 🙂 👨‍👩‍👧 🇩🇪 ❤️ #tag @user a.b@c.de https://x.y/z?q=1&r=2 C:\\dir snake_case
camelCase kebab-case $x^2$ \\frac{a}{b} $$\\sum_{i=0}^n$$ <table> </td><td> <br/> &amp; | --- | :---: ![image](image_1.png)
# ## **bold** _it_ `code` ``` [x](y) () {} [] <> ... !!! ?! -- // \\\\ == != => ;; e\u0301 o\u0308\u0323 A\u030a \u1100\u1161\u11a8
q\u0307\u0323 \u0627\u0653 \u212b \ufb1d \ufeff \u00ad \u200b \u200d \u0000x \u001b \ufffd \U0001d49c \U0001f9ff \U0010ffff""".split()
BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", " \t \n  ", "\u00a0", "\u2003", "\u3000", "\u2028", "\x0b", "\x85",
          "        ", "\r", " \r\n \r\n  ", "\u200a\n"]


def splitmix(seed, count):
    out = []
    for i in range(1, count + 1):
        z = (seed + i * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        out.append(z ^ (z >> 31))
    return out


def any_character(rng):
    """Assigned in this Python's Unicode, which both sides know; not of the few that only newer tables compose."""
    while True:
        c = chr(rng.randrange(1, rng.choice([0x250, 0x3100, 0x10000, 0x20000, 0x110000])))
        if unicodedata.category(c) not in ("Cn", "Cs") and not 0x11900 <= ord(c) < 0x11960:
            return c


def piece(rng, added):
    kind = rng.random()
    if kind < 0.50:
        return rng.choice(WORDS)
    if kind < 0.80:
        return rng.choice(BLANKS)
    if kind < 0.85:
        return rng.choice(added)
    if kind < 0.92:
        return "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 12)))
    return "".join(any_character(rng) for _ in range(rng.randrange(1, 6)))


def texts(added):
    rng = random.Random(20)
    fixed = ["", " ", "\n", "a", "'", "'s", "Hello world", " Hello world", "don't can't I'll we've",
             "  leading and   multiple spaces ", "123 4567 0.5e-3 -42", "()[]{}<>", "snake_case camelCase kebab-case dot.case",
             "<|im_start|>system<|im_end|>", "<|im_start|", "<|image_pad|><|image_pad|>", "a" * 300, " " * 300, "ab" * 200]
    fixed += [w for w in WORDS] + [b + "a" for b in BLANKS] + BLANKS
    out = [t.replace("\0", "") for t in fixed]
    while len(out) < 1000:
        out.append("".join(piece(rng, added) for _ in range(rng.randrange(1, 20))).replace("\0", ""))
    return out


def crc_ids(ids):
    packed = array.array("I", ids)
    return zlib.crc32(packed.tobytes())


def crc_text(text):
    return zlib.crc32(text.encode())


def sequences(rows):
    for seed in range(1000):
        draws = splitmix(seed << 32, 64)
        yield [z % rows for z in draws[1 : 2 + draws[0] % 63]]


def expect(raw, all_texts):
    t = tokenizers.Tokenizer.from_str(raw.decode())
    rows = t.get_vocab_size() + EXTRA
    encoded = [t.encode(text, add_special_tokens=False).ids for text in all_texts]
    decoded = [t.decode(ids, skip_special_tokens=True) for ids in sequences(rows)]
    each = [t.decode([i], skip_special_tokens=True) + "\n" for i in range(rows)]
    return {
        "sha256": hashlib.sha256(raw).hexdigest(),
        "rows": rows,
        "image_token": t.token_to_id("<|image_pad|>"),
        "prompt": t.encode(PROMPT, add_special_tokens=False).ids,
        "each": [crc_text("".join(each[i : i + CHUNK])) for i in range(0, rows, CHUNK)],
        "encoded": [crc_ids(ids) for ids in encoded],
        "encoded_full": encoded[:FULL],
        "decoded": [crc_text(text) for text in decoded],
        "decoded_full": decoded[:FULL],
    }


def main():
    raw = {name: (gzip.open if path.endswith(".gz") else open)(path, "rb").read() for name, path in FILES.items()}
    added = [a["content"] for a in json.loads(raw["qwen"])["added_tokens"]]
    all_texts = texts(added)
    out = {"made_by": "tests/reference/tokenizer.py", "tokenizers": tokenizers.__version__, "texts": all_texts}
    for name in FILES:
        out[name] = expect(raw[name], all_texts)
    with open(OUT, "w", encoding="ascii") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
