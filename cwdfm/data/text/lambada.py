"""LAMBADA: passages whose last word needs the whole passage, by Paperno et al. (2016).

Lower-cased and tokenised as its authors published it, a passage a document; detokenised here.
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
