from istmpi.data.kind import Kind, lazy

_HOW = (
    "by rows (sum 1), columns (mean 0, deviation 1) or none.  [default: sparse rows, dense columns]"
)
GRAPH = Kind(
    name="graph",
    help="nodes with features and labels: .npz, Planetoid, the files of PyG and OGB",
    read=lazy("graph.prepare:read"),
    options=(
        ("clusters", "N", "cut it into N clusters with METIS, for batches of clusters."),
        ("directed", "", "directed edges; values flow from source to target."),
        ("normalise", "HOW", f"normalise features {_HOW}"),
    ),
    input=("GRAPH.h5", "a prepared graph, for a network trained on a graph"),
    open=lazy("graph.split:open_graph"),
)
