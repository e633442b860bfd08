"""LAMBADA: passages whose last word depends on the entire passage (Paperno et al. 2016).

One document per passage. The original is lowercase and tokenized into words, which is undone here.
"""

from cwdfm.data.text.hub import HubCorpus

LAMBADA = HubCorpus(
    name="lambada",
    path="cimec/lambada",
    config="plain_text",
    parts=(("train", "train"), ("valid", "validation"), ("test", "test")),
    detokenizer="lambada",
    unit="lines",
)
