"""LM1B: 30 million sentences of news in random order, by Chelba et al. (2013).

A sentence a document; the hub's test part is what everyone validates on. The revision is the hub's
own conversion to parquet, since the dataset itself is a script, which `datasets` no longer runs.
"""

from cwdfm.data.text.hub import HubCorpus

LM1B = HubCorpus(
    name="lm1b",
    length=128,
    path="billion-word-benchmark/lm1b",
    revision="refs/convert/parquet",
    parts=(("train", "train"), ("valid", "test")),
    detokenizer="lm1b",
    unit="lines",
)
