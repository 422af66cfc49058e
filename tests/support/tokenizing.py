"""A small tokenizer of Hugging Face's library, trained on the spot."""

from pathlib import Path

import pytest

from istmpi.data.prepare import prepare

CORPUS = ["A subnet holds some units of each layer.", "Ünits travel home, and are dealt out again.\n\n"] * 20


def make_tokenizer(path: Path, end: str | None = "<|endoftext|>", vocabulary: int = 320) -> Path:
    """Of pairs of bytes; it would cut and pad texts, and has an end of text of this name, or none."""
    library = pytest.importorskip("tokenizers", reason="tokenizer files need the library tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<pad>", *([end] if end else [])],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.enable_truncation(max_length=5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))
    return path


def prepare_tokens(path: Path, end: str) -> None:
    """Prepare some text in tokens of a tokenizer with this end of text; all vocabularies are of one size."""
    documents = path.with_suffix("")
    documents.mkdir()
    for number in range(10):
        (documents / f"{number}.txt").write_text("units of a layer\n" * (number + 3), encoding="utf-8")
    prepare("text", documents, path, tokenizer=str(make_tokenizer(path.with_suffix(".json"), end)))
