"""The words of the field, explained in a sentence each, with NIST's words beside them."""

import re
from collections.abc import Iterable

from markupsafe import Markup, escape

GLOSSARY = {
    "heldout": "People whom no model has seen in training. The server has photographs of them and tests every model.",
    "private": "The clients' own people, on photographs that were kept out of training, all clients together.",
    "new people": "People whom no model has seen in training (heldout).",
    "own people": "The people of each client, on photographs that were kept out of training; a mean over the clients.",
    "worst client": "The client with the lowest figure.",
    "worst tenth": "The mean over the tenth of the clients with the lowest figures; at least one client.",
    "recognises": "A model recognises a person when it accepts two photographs of this person as one person (TAR), or "
    "finds the person in a gallery at the first guess (rank-1).",
    "false accepts": "Two different people are taken for one. A threshold is set so that this happens at a given rate.",
    "TAR": "True accept rate: how often two photographs of one person are accepted. NIST gives the errors instead: "
    "FNMR = 1 - TAR.",
    "FAR": "False accept rate: how often photographs of two people are accepted as one. NIST calls it FMR, the false "
    "match rate, so that TAR at FAR 1% is 1 - FNMR at FMR 1%.",
    "TPIR": "True positive identification rate: how often a person in the gallery is found at the first guess. NIST "
    "gives FNIR = 1 - TPIR.",
    "FPIR": "False positive identification rate: how often the model finds somebody for a person who is not in "
    "the gallery.",
    "FMR": "False match rate: how often photographs of two people are accepted as one; the same as FAR.",
    "FNMR": "False non-match rate: how often two photographs of one person are refused; 1 - TAR.",
    "Gini coefficient": "How unevenly an error is spread over groups of people: 0 if all groups have the same rate, 1 "
    "if one group has all errors.",
    "rank-1": "How often the most similar person of the gallery is the right one.",
    "accuracy": "The share of photograph pairs that are judged correctly: one person, or two different people. Each "
    "tenth of the pairs is judged with the best threshold of the other nine.",
    "95% interval": "If the test were repeated with other people or clients of the same kind, 95 of 100 such intervals "
    "would contain the true figure. It comes from resampling the people; for few clients, from Student's distribution.",
    "noise": "The 95% interval of the difference contains zero: these data cannot show a difference.",
    "ROC": "The true accept rate over the false accept rate, for every threshold.",
    "pooled": "Trained on everybody's faces in one place, for comparison. It keeps nothing private.",
    "F-score": "How well clusters agree with people: the harmonic mean of precision and recall over pairs of images.",
    "NMI": "How well clusters agree with people, from 0 to 1: mutual information, normalised.",
    "silhouette": "How far clusters are apart, from -1 to 1.",
}
# The longest first, so that "worst tenth" is found before anything in it.
_WORDS = re.compile(rf"\b({'|'.join(map(re.escape, sorted(GLOSSARY, key=len, reverse=True)))})\b([.,;:)]*)")


def explained(text: str) -> Markup:
    """A text in which the words of the glossary open their explanation."""
    found, end = [], 0
    for word in _WORDS.finditer(text):
        found += [escape(text[end : word.start()]), _button(word[1], word[2])]
        end = word.end()
    return Markup("").join([*found, escape(text[end:])])


def anchor(word: str) -> str:
    return "term-" + re.sub(r"\W+", "-", word.lower())


def words_in(page: str) -> Iterable[tuple[str, str]]:
    """The entries that a page refers to."""
    return ((word, text) for word, text in GLOSSARY.items() if f'popovertarget="{anchor(word)}"' in page)


def _button(word: str, punctuation: str) -> Markup:
    """What follows a word must not begin the next line."""
    button = Markup('<button type="button" class="term" popovertarget="{}">{}</button>').format(anchor(word), word)
    return Markup('<span class="keep">{}{}</span>').format(button, punctuation) if punctuation else button
