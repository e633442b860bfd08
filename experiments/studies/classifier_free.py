"""Classifier-free guidance on MOSES: the requested property against the strength of guidance.

    python -m experiments.studies.classifier_free --model MODEL --out classifier_free.json --work DIR

MODEL was trained with the conditions logp and qed. A strength other than 1 evaluates the network
twice per step. Results of each setting are kept in DIR; repeat the command to resume.
"""

from itertools import product

import cwdfm
from experiments.studies.guidance import STRENGTHS, Setting, compare, guidance_parser, requests


def main() -> None:
    parser = guidance_parser(__doc__)
    parser.add_argument("--model", required=True, help="a model with the conditions logp and qed")
    options = parser.parse_args()
    trained = cwdfm.load(options.model)
    settings = []
    for (name, value), strength in product(requests(), STRENGTHS):
        guidance = cwdfm.ClassifierFreeGuidance({name.lower(): value}, strength)
        settings.append(Setting(name, value, strength, "classifier-free", guidance, options.n))
    compare(trained, settings, options, model=trained.card)


if __name__ == "__main__":
    main()
