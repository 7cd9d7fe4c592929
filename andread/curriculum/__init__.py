"""Sources to tokens to batches: what feeds training. Torch stays out of the preparing half.

inputs      the files of a source
sources     one pass over the documents of a source
sample      what the tokenizer is trained on
tokenizer   text to tokens and back
partial     tokens of one source, being written; survives a kill
prepare     sources to token files
tokens      what training reads
"""
