from istmpi.data.class_list import OPTION as CLASSES
from istmpi.data.kind import Kind, lazy

_TASK = ("task", "TASK", "classification, regression or (arrays) multi-label.  [default: guessed]")
SPEECH = Kind(
    name="speech",
    help="WORD/SPEAKER_nohash_INDEX.wav, as in Speech Commands",
    read=lazy("dense.speech:read"),
    options=(CLASSES,),
    input=("FILE.wav, FOLDER, .tar", "for a network trained on speech"),
    examples=lazy("dense.speech:examples"),
    open=lazy("dense.split:open_rows"),
)
IDX = Kind(
    name="idx",
    help="the MNIST family",
    read=lazy("dense.arrays:read_idx"),
    examples=lazy("images.prepare:examples"),
    reading={"type": "bytes"},
)
ARRAYS = Kind(
    name="arrays",
    help=".npz or .npy with x_train, y_train, x_test, y_test",
    read=lazy("dense.arrays:read"),
    options=(
        _TASK,
        (
            "channels",
            "first|last",
            "position of channels in images [n, ., ., .].  [default: first]",
        ),
        CLASSES,
    ),
    endings=(".npy",),
    input=("FILE.npy, FILE.npz", "an array x [examples, ...]"),
)
CSV = Kind(
    name="csv",
    help="a table of numbers with a column of labels: text, .parquet, .arrow or .feather",
    read=lazy("dense.tables:read"),
    options=(
        _TASK,
        (
            "label",
            "COLUMN",
            "the column of labels, a name or a number counted from 0.  [default: last]",
        ),
        ("header", "yes|no", "line 1 is a header.  [default: guessed]"),
        CLASSES,
        ("drop", "NAME,...", "columns to leave out."),
        ("categories", "NAME,...", "columns of categories: a feature of 0 and 1 for each."),
        (
            "missing",
            "refuse|mean|most-frequent",
            "what to do where a feature is missing; for categories, mean is most-frequent.  "
            "[default: refuse]",
        ),
        (
            "like",
            "FILE.h5",
            "a prepared table, whose columns, categories, filled values and classes hold here.",
        ),
        ("delimiter", "CHARACTER", "delimiter, or tab.  [default: comma, semicolon or tab]"),
    ),
    endings=(".csv", ".parquet", ".arrow", ".feather"),
    input=(
        "FILE.csv, FILE.parquet",
        "a row of numbers for each example, columns named as in training",
    ),
)
