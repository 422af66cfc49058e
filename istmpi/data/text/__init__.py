from istmpi.data.kind import Kind, lazy

TEXT = Kind(
    name="text",
    help="text files, .jsonl with a document per line, .gz",
    read=lazy("text.prepare:read"),
    options=(
        ("tokenizer", "bytes|FILE.json", "the tokenizer.  [default: bytes]"),
        ("key", "KEY", "key of the text in a .jsonl line.  [default: text]"),
    ),
    endings=(".txt", ".jsonl"),
    input=("FILE.txt, any name, or -", "a prompt, for a network trained on text"),
    open=lazy("text.split:open_text"),
)
