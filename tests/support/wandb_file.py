"""What an offline run of Weights & Biases left: its .wandb file, which is a LevelDB log of protocol buffers."""

import json

BLOCK = 32768
HEADER = 7


def history(path):
    """The rows that were logged, each a dict by names."""
    from wandb.proto import wandb_internal_pb2 as proto

    rows = []
    for packed in _records(path.read_bytes()):
        record = proto.Record.FromString(packed)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def _records(data):
    """The records of a LevelDB log behind a header as long as theirs: whole ones, and those in parts."""
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
