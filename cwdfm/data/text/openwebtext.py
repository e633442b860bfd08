"""OpenWebText: 8,013,769 pages that Reddit linked to, by Gokaslan and Cohen (2019).

It has no split of its own. The last 100,000 documents are for validation, as in the literature on
discrete diffusion.
"""

from cwdfm.data.text.hub import HubCorpus

OPENWEBTEXT = HubCorpus(
    name="openwebtext",
    path="Skylion007/openwebtext",
    parts=(("train", "train"),),
    held_out=100_000,
)
