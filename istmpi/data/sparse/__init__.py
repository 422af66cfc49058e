from istmpi.data.kind import Kind, lazy

_FIRST = (
    "number of the first feature in rows without a header.  [default: 0 if it occurs, otherwise 1]"
)
XC = Kind(
    name="xc",
    help="sparse rows with labels: Extreme Classification Repository, svmlight",
    read=lazy("sparse.prepare:read"),
    options=(("counted_from", "0|1", _FIRST),),
    endings=(".svm",),
    input=("FILE.txt, .svm", "sparse rows, for a network trained on sparse rows (xc)"),
    open=lazy("sparse.split:open_rows"),
)
