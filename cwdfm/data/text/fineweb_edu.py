"""FineWeb-Edu: educational web pages from Common Crawl (Penedo et al. 2024).

This is the sample of 10 billion tokens. The dataset has no split of its own, so one document in 20
is held out; see `pack`.
"""

from cwdfm.data.text.hub import HubCorpus

FINEWEB_EDU = HubCorpus(
    name="fineweb-edu",
    path="HuggingFaceFW/fineweb-edu",
    config="sample-10BT",
    parts=(("train", "train"),),
)
