"""Score the samples of `experiments.studies.moses` with the metrics of MOSES.

    python -m experiments.studies.moses_scores --runs DIR --work W --out moses.json

DIR is written by the action `unpack` of that study. The scores of each file are kept in W; repeat
the command to resume. Needs RDKit and fcd_torch, and takes about five minutes on two cores for each
file of 30,000 samples. Of settings whose name ends in "-valid", it scores the first 30,000 valid
samples, as rejection sampling would return them.
"""

import json
from pathlib import Path
from typing import Any

from cwdfm.cli.options import cores
from cwdfm.cli.progress import stages
from cwdfm.data.reference import load_reference
from cwdfm.data.smiles import canonical
from cwdfm.files import write_json
from cwdfm.metrics.distribution import distribution_scores
from cwdfm.metrics.reference_statistics import reference_statistics
from cwdfm.sample_file import read_samples
from experiments.studies.command import save, study_parser
from experiments.studies.moses import SCORED, VALID


def training(folder: Path) -> dict[str, Any]:
    """What the metrics of a run say about its training: the last value of each."""
    last: dict[str, Any] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        last |= json.loads(line)
    return last


def first_valid(texts: list[str], count: int) -> tuple[list[str], int]:
    """The first `count` valid molecules, and the number of samples drawn until then."""
    valid = [i for i, text in enumerate(texts) if canonical(text) is not None][:count]
    if len(valid) < count:
        return [texts[i] for i in valid], len(texts)
    return [texts[i] for i in valid], valid[-1] + 1


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="unpacked runs and samples")
    parser.add_argument("--work", type=Path, required=True, help="a folder of finished scores")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows, workers = [], cores()
    with stages() as progress:
        reference = load_reference("moses", progress=lambda n: progress("reading moses", n, None))
        against = reference_statistics(reference, workers=workers, progress=progress)
        for path in sorted((options.runs / "samples").glob("*.jsonl")):
            kept = options.work / f"{path.stem}.json"
            if not kept.exists():
                file = read_samples(path)
                texts, drawn = file.texts, len(file.texts)
                if file.options["solver"].endswith(VALID):
                    texts, drawn = first_valid(texts, SCORED)
                scores = distribution_scores(
                    texts, against, reference.known, workers=workers, progress=progress
                )
                row = {
                    "run": file.options["model"],
                    "sampler": file.options["solver"],
                    "samples": len(texts),
                    "evaluations": file.head["evaluations"] / len(file.texts) * drawn / len(texts),
                    "arguments": file.head["arguments"],
                    "card": file.head["model"],
                    "training": training(options.runs / file.options["model"]),
                }
                write_json(kept, row | scores.to_json())
            rows.append(json.loads(kept.read_text()))
    save(options.out, config={"data": "moses"}, rows=rows)
    for row in rows:
        found = {name: round(x["value"], 4) for name, x in row["scores"].items()}
        print(row["run"], row["sampler"], f"{row['evaluations']:.1f}", found)


if __name__ == "__main__":
    main()
