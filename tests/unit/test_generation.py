"""Text that goes on from a prompt: the same with and without a cache, drawn as the odds say, told as it comes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizing import make_tokenizer

from istmpi.data.text.tokenizer import Bytes, open_tokenizer
from istmpi.deploy.generation import continue_prompt, make_predictor, read_prompt, texts
from istmpi.errors import DataError
from istmpi.models.transformer import Transformer

WINDOW, WORDS, NEVER = 12, 20, -1


def decoder(**changed):
    torch.manual_seed(0)
    network = Transformer((WINDOW,), WORDS, 2, 16, (2, 2), 2, 4, (9, 9), **changed).double().eval()
    for parameter in network.parameters():  # far from uniform odds
        parameter.data *= 3
    return network


class Uncached(torch.nn.Module):
    """The same network to somebody who knows of no cache, and has windows of that length alone."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, tokens):
        assert tokens.shape == (1, WINDOW)
        return self.network(tokens)


@pytest.mark.parametrize("prompt, temperature", [([3], 0.7), ([1, 2, 3, 4, 5], 0.0)])
@pytest.mark.parametrize("positions", ["rotary", "learnt"])
def test_it_is_the_same_with_and_without_a_cache_and_behind_the_window(positions, prompt, temperature):
    network = decoder(positions=positions)
    with_it, without = (
        list(continue_prompt(make_predictor(one, WINDOW), prompt, WINDOW, NEVER, 3 * WINDOW, temperature, 5))
        for one in (network, Uncached(network))
    )
    assert with_it == without and len(with_it) == 3 * WINDOW
    assert len(set(with_it)) > 3 or temperature == 0


def test_within_the_window_it_is_the_likeliest_behind_all_that_came_before():
    network, tokens = decoder(), [0, 1, 2, 3]
    found = continue_prompt(make_predictor(network, WINDOW), tokens[:], WINDOW, NEVER, WINDOW - 3, 0.0, 0)
    for token in found:
        with torch.no_grad():
            assert token == int(network(torch.tensor([tokens]))[0, -1].argmax())
        tokens.append(token)


def test_of_a_longer_prompt_the_last_window_counts_and_behind_it_half_is_kept():
    network, prompt, asked = decoder(), [token % WORDS for token in range(50)], []
    one, other = (
        list(continue_prompt(make_predictor(network, WINDOW), of, WINDOW, NEVER, 20, 1.0, 3))
        for of in (prompt, prompt[-WINDOW:])
    )
    assert one == other

    def ask(tokens):
        asked.append(list(tokens))
        return np.eye(100)[len(asked) % 100]

    list(continue_prompt(ask, [0], 8, NEVER, 13, 0.0, 0))
    assert list(map(len, asked)) == [1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8]
    assert asked[8] == [5, 6, 7, 8]


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_tokens_are_drawn_with_their_odds(temperature):
    logits = np.array([0.0, 2.0, -1.0, 1.0, -np.log(1e9)], np.float32)
    drawn = list(continue_prompt(lambda _: logits, [0], 4, NEVER, 8000, temperature, 11))
    odds = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 8000, odds, atol=0.02)
    again, others = (list(continue_prompt(lambda _: logits, [0], 4, NEVER, 50, temperature, seed)) for seed in (11, 12))
    assert again == drawn[:50] != others


def test_the_end_of_the_document_ends_it_and_what_is_not_finite_is_refused():
    rows = iter(np.eye(5)[[3, 4, 2, 1]])
    assert list(continue_prompt(lambda _: next(rows), [0], 4, 2, 100, 0.0, 0)) == [3, 4]
    with pytest.raises(DataError, match="not finite after 0 new tokens"):
        list(continue_prompt(lambda _: np.array([0, np.nan]), [0], 4, NEVER, 1, 1.0, 0))


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_bytes_are_told_as_the_text_that_they_are(content):
    tokens = [byte for byte in content if byte != Bytes().end]
    assert "".join(texts(tokens, Bytes())) == bytes(tokens).decode("utf-8", "replace")
    assert list(texts("aé".encode(), Bytes())) == ["a", "", "é", ""], "a character is told once it is complete"


def test_pieces_of_a_tokenizer_file_are_its_text(tmp_path):
    tokenizer = open_tokenizer(str(make_tokenizer(tmp_path / "tokenizer.json")))
    tokens = tokenizer.encode("the  cat sat\n on the mat, café 猫 the end".encode()).tolist()
    pieces = list(filter(None, texts(tokens, tokenizer)))
    assert "".join(pieces) == tokenizer.decode(tokens).decode()
    assert len(pieces) > 3 and "\ufffd" not in "".join(pieces)


def test_prompts(tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(b"ab\n")
    assert read_prompt(str(prompt), Bytes()) == [97, 98, 10]
    prompt.write_bytes(b"")
    assert read_prompt(str(prompt), Bytes()) == [Bytes().end]
    prompt.write_bytes(b"a\0b")
    with pytest.raises(DataError, match="prompt.txt cannot be continued: it has a byte 0"):
        read_prompt(str(prompt), Bytes())
    with pytest.raises(DataError, match="cannot be continued: No such file"):
        read_prompt(str(tmp_path / "none"), Bytes())
