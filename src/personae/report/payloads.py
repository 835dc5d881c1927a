"""What the kinds of payloads are, in words."""

EXPLANATIONS = {
    "ModelState": "weights of the model",
    "ModelWithoutStatistics": "weights of the model, without the statistics of BatchNorm",
    "ModelWithoutBatchNorm": "weights of the model, without those of BatchNorm",
    "Gradient": "a mean gradient or a momentum of the weights",
    "ClassEmbeddings": "one vector for each identity that a client holds",
    "Aliases": "a token for each identity, by which clients that hold the same person can be told",
    "PublicEmbeddings": "one vector for each identity of a public data set",
    "Count": "the number of samples behind an update",
    "Scalars": "named figures, such as a mean loss",
    "FailureCode": "why a client could not do its work, as one of a list of codes",
}
SHORT = {
    "ModelState": "weights",
    "ModelWithoutStatistics": "weights",
    "ModelWithoutBatchNorm": "weights",
    "Gradient": "gradients",
    "ClassEmbeddings": "a vector for each person",
    "Aliases": "tokens of people",
    "PublicEmbeddings": "vectors of public people",
    "Count": "counts",
    "Scalars": "figures",
    "FailureCode": "failure codes",
}


def in_words(payload: str) -> str:
    """Short, for a sentence; a payload that nobody has described goes by its name."""
    return SHORT.get(payload, payload)
