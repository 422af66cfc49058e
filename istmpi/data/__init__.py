"""Data sets, and each rank's own deterministic stream of batches out of them.

    sources     open_dataset("digits" | "FILE.h5" | "FILE.npz")
    dataset     Dataset, Split: what training reads
    batches     Batches(...).at(step), the stream itself
    placement   the training rows that a stream may draw
    prepare     prepare(kind, source, target); writer writes the file, hdf5 opens it
    files/      others' files: archives, class folders, pickles
    dense/ images/ text/ sparse/ graph/     the kinds of data

A *stream* is a number: nothing here knows of ranks. Nothing is imported here, for each module its own libraries.
"""
