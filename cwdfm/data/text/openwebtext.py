"""OpenWebText: 8,013,769 web pages linked from Reddit (Gokaslan and Cohen 2019).

The dataset has no split of its own. The last 100,000 documents are used for validation, as is
common in work on discrete diffusion.
"""

from cwdfm.data.text.hub import HubCorpus

OPENWEBTEXT = HubCorpus(
    name="openwebtext",
    path="Skylion007/openwebtext",
    parts=(("train", "train"),),
    held_out=100_000,
)
