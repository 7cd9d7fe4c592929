"""The feeding side: sources, tokens, batches, and the mixer that bounds what is pulled.

From text to batches:

    chunks      files cut into pieces of text, in bounded memory
    inputs      what a source's paths stand for: the files, and a digest that notices changes
    sources     the documents of a source, piece by piece, whatever its format
    sample      an even sample over the sources, for the tokenizer to train on
    tokenizer   byte-level BPE
    unique      how many of a source's tokens are unique
    partial     tokens of a source on their way to its final files, resumable
    prepare     all of that, in order
    tokens      what training reads: windows of a source's tokens

What is pulled:

    batches     what a step trains on, a function of (seed, step)
    mixing      the share of each arm at each step, with a lag of one; zombie arms
    bandit      rewards and weights of `ucb`
    projection  exact shares between floors and caps
"""
