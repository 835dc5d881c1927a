"""FedFace: one identity a client, class embeddings spread out at the server. Rows of the tables are variants."""

from personae.reproduce.claims import Above, Claim, Gate, Near, Rising, System
from personae.reproduce.quantities import Outcomes, Quantity, constant, figure, over_rounds

COLLAPSE = 5.0  # points that count as far below
CLOSE = 1.0  # points that count as about the same
CHANCE = constant(50)  # the accuracy of guessing on as many pairs of one person as of two

PRETRAINED, CENTRAL = figure("pre-trained", "pretrained"), figure("central", "central")
FEDFACE_, POSITIVE = figure("FedFace", "fedface"), figure("positive only", "positive")
RATES = tuple(
    figure(f"{label} TAR@1e-2", variant, "heldout/tar@1e-02")
    for label, variant in (("pre-trained", "pretrained"), ("FedFace", "fedface"), ("central", "central"))
)
NO_SPREADOUT, NO_MEAN = figure("without spreadout", "no-spreadout"), figure("without mean", "no-mean")
CUT = tuple(figure(f"cut in {clients}", f"cut-{clients}") for clients in (1, 4, 8, 16, 64))
ONE_EACH = figure("one each", "cut-each")


def earlier(label: str, variant: str) -> Quantity:
    """The accuracy at three quarters of the rounds."""

    def read(outcomes: Outcomes) -> float:
        curve = outcomes[variant].curve("heldout/accuracy")
        return 100 * curve[min(curve, key=lambda round_: abs(round_ - 0.75 * max(curve)))]

    return Quantity(label, (variant,), read)


TO_GAIN = Gate(
    "the private people teach something: central fine-tuning gains a point", Above(CENTRAL, PRETRAINED, by=1)
)
FEDFACE_IN_TURN = figure("FedFace, in turn", "fedface-in-turn")
KEPT = Gate(
    "the rate is not too high for client after client: with spreadout the start is kept",
    Above(FEDFACE_IN_TURN, PRETRAINED, by=-CLOSE),
)
AT_REST = Gate(
    "training is at its end: the last quarter of the rounds changes little",
    Near(FEDFACE_, earlier("FedFace at three quarters", "fedface"), within=CLOSE),
)
TO_LOSE = Gate(
    "there is something to lose: with all people in one client, accuracy is twice a collapse above chance",
    Above(CUT[0], CHANCE, by=2 * COLLAPSE),
)

FEDFACE = System(
    name="fedface",
    leads="FF-6",
    paper="Aggarwal, Zhou and Jain, FedFace: Collaborative Learning of Face Recognition Model",
    claims=(
        Claim(
            "FF-1",
            "Positive-only averaging collapses, far below the pre-trained baseline",
            "Table 1: LFW 99.15 -> 68.88",
            (Above(PRETRAINED, POSITIVE, by=COLLAPSE),),
            gates=(TO_GAIN, AT_REST),
            short="positive pairs only: collapse",
        ),
        Claim(
            "FF-1a",
            "The same, where client trains after client, as in the authors' code: positive pairs only collapse",
            "Table 1: LFW 99.15 -> 68.88",
            (Above(PRETRAINED, figure("positive only, in turn", "positive-in-turn"), by=COLLAPSE),),
            gates=(KEPT,),
            short="client after client, positive pairs only: collapse",
        ),
        Claim(
            "FF-2",
            "Random, fixed class embeddings fall below the baseline",
            "Table 1: LFW 99.15 -> 94.61",
            (Above(PRETRAINED, figure("random, fixed", "fixed"), paper=(99.15, 94.61)),),
            gates=(TO_GAIN, AT_REST),
            short="random, fixed class embeddings fall below the start",
        ),
        Claim(
            "FF-3",
            "FedFace beats the baseline and comes close to central fine-tuning",
            "Table 1: 99.28 vs 99.32; IJB-C 84.78 -> 88.21 vs 88.76",
            (
                Above(FEDFACE_, PRETRAINED, paper=(99.28, 99.15)),
                Above(RATES[1], RATES[0], paper=(88.21, 84.78)),
                Above(FEDFACE_, CENTRAL, by=-CLOSE),
            ),
            beside=RATES,
            gates=(TO_GAIN, AT_REST),
            short="FedFace beats the start, close to central",
        ),
        Claim(
            "FF-4",
            "Without spreadout it collapses",
            "Table 2: 75.90",
            (Above(PRETRAINED, NO_SPREADOUT, by=COLLAPSE), Above(FEDFACE_, NO_SPREADOUT, by=COLLAPSE)),
            gates=(TO_GAIN, AT_REST),
            short="without spreadout: collapse",
        ),
        Claim(
            "FF-4a",
            "The same, where client trains after client, as in the authors' code: without spreadout it collapses",
            "Table 2: 75.90",
            (Above(FEDFACE_IN_TURN, figure("without spreadout, in turn", "no-spreadout-in-turn"), by=COLLAPSE),),
            gates=(KEPT,),
            short="client after client, without spreadout: collapse",
        ),
        Claim(
            "FF-5",
            "Without mean initialisation it ends about the same but learns more slowly",
            "Table 2: 99.28; 200 vs 450 rounds",
            (
                Near(NO_MEAN, FEDFACE_, within=CLOSE),
                Above(
                    over_rounds("FedFace, mean over its rounds", "fedface"),
                    over_rounds("without mean, over its rounds", "no-mean"),
                ),
            ),
            gates=(TO_GAIN, AT_REST),
            short="without mean start: same end, more slowly",
        ),
        Claim(
            "FF-6",
            "Plain averaging decays as the same identities are cut into 1, 4, 8, 16, 64, ... clients, to collapse at "
            "one each",
            "Figure 4",
            (
                Rising((ONE_EACH, *CUT[::-1])),
                Above(CUT[0], ONE_EACH, by=COLLAPSE),
            ),
            gates=(TO_LOSE,),
            short="averaging decays with more, smaller clients",
        ),
    ),
)
