"""The ring's schedule: what is grouped and cut covers everything once."""

from hypothesis import given
from hypothesis import strategies as st

from istmpi.comm import ring

SIZES = st.lists(st.integers(1, 5_000_000), min_size=1, max_size=6)


@given(SIZES)
def test_buckets_hold_every_tensor_once_from_the_last_to_the_first(sizes):
    named = {str(number): size for number, size in enumerate(sizes)}
    grouped = ring.buckets(named)
    assert [name for names in grouped for name in names] == list(reversed(named))
    for names in grouped:
        assert len(names) == 1 or sum(named[name] for name in names) <= ring.BUCKET_BYTES


@given(st.integers(0, 9_000_000), st.sampled_from([2, 4, 8]), st.integers(1, 70))
def test_pieces_cover_a_bucket_and_no_message_is_too_long(elements, itemsize, ranks):
    position = 0
    for segment in ring.segments(elements, itemsize, ranks):
        assert segment.start == position < segment.stop
        length, end = segment.stop - segment.start, 0
        for chunk in ring.chunks(length, ranks):
            assert chunk.start == end <= chunk.stop
            assert (chunk.stop - chunk.start) * itemsize <= ring.CHUNK_BYTES
            end = chunk.stop
        assert end == length
        position = segment.stop
    assert position == elements
