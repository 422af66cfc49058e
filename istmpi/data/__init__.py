"""Data sets, and each rank's own deterministic stream of batches out of them.

    sources     open_dataset("digits" | "FILE.h5" | "FILE.npz")     what a run names
    dataset     Dataset, Split                                      what it gets
    batch       Batch                                               some examples as a network takes them
    kinds       split_of(kind, ...)                                 which class reads which kind: dense, images
    text        TextSplit, windowed(...)                            windows of a stream of tokens
    tokenizer   open_tokenizer("bytes" | "FILE.json")               from text to tokens and back
    placement   place(...)                                          which training rows a stream may draw
    batches     Batches(...).at(step)                               the stream itself
    hdf5        the prepared file: one writer, one reader; text_file: the part of text
    prepare/    from wavs, images, tables, arrays and text to a prepared file

Nothing here knows of ranks, communicators or environment variables: a *stream* is a number and *streams* says how
many there are. Nothing is imported here, so that one module does not cost the libraries of all the others.
"""
