"""FineWeb-Edu: educational pages of Common Crawl, by Penedo et al. (2024).

This is the hub's sample of 10 billion tokens. It has no split of its own:
one document in twenty is held out, see `pack`.
"""

from cwdfm.data.text.hub import HubCorpus

FINEWEB_EDU = HubCorpus(
    name="fineweb-edu",
    path="HuggingFaceFW/fineweb-edu",
    config="sample-10BT",
    parts=(("train", "train"),),
)
