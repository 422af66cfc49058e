from istmpi.data.kind import Kind, lazy

TEXT = Kind(
    "text",
    "text files, .jsonl with a document per line, .gz",
    lazy("text.prepare:read"),
    (
        ("tokenizer", "bytes|FILE.json", "the tokenizer.  [default: bytes]"),
        ("key", "KEY", "key of the text in a .jsonl line.  [default: text]"),
    ),
    (".txt", ".jsonl"),
    ("FILE.txt, any name, or -", "a prompt, for a network trained on text"),
    open=lazy("text.split:open_text"),
)
