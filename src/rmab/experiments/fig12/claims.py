"""Thompson sampling beats upper confidence bounds (Fig. 12)."""

from rmab.experiments.estimates import paired, with_error
from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim

__all__ = ["judge"]


def judge(done: FigureResult) -> list[Claim]:
    claims = []
    for sampler, bound, pair in (
        ("fedtswi", "feducb-wi", "FedTSWI over FedUCB-WI"),
        ("fedts-myopic", "feducb-myopic", "FedTS-myopic over FedUCB-myopic"),
    ):
        clipped, raw = (paired(results, sampler, bound) for results in done.results)
        claims.append(
            Claim(
                f"Thompson sampling beats upper confidence bounds: {pair}.",
                f"first less second: {with_error((clipped.value, clipped.se))} clipped, "
                f"{with_error((raw.value, raw.se))} not clipped.",
                [clipped, raw],
            )
        )
    return claims
