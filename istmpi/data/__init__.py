"""Data sets, and each rank's own deterministic stream of batches out of them.

    sources     open_dataset("digits" | "FILE.h5" | "FILE.npz")     a run's name for its data
    dataset     Dataset, Split                                      what training reads
    batch       Batch                                               some examples as a network takes them
    batches     Batches(...).at(step)                               the stream itself
    placement   place(...)                                          the training rows that a stream may draw
    prepare     prepare(kind, source, target)                       from others' files to a prepared file
    hdf5        open_prepared(path)                                 the prepared file; writer writes it
    files/      others' files: archives, notes, class folders, pickles
    dense/ images/ text/ sparse/ graph/     the kinds of data, each with split, file, prepare, predict

Nothing here knows of ranks, communicators or environment variables: a *stream* is a number and *streams* says how many
there are. Nothing is imported here, so that one module does not cost the libraries of all the others.
"""
