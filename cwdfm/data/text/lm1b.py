"""LM1B: 30 million news sentences in random order (Chelba et al. 2013).

One document per sentence. As is common, the hub's test part is used for validation. The revision is
the hub's own conversion to parquet, because `datasets` no longer runs the dataset's script.
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
