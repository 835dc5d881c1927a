"""Terms that a client may add to its loss, by name: one file each."""

from personae.core.registry import Registry
from personae.parts.terms.embedding_regularisation import EmbeddingRegularisation
from personae.parts.terms.proximal import Proximal
from personae.parts.terms.term import Term, Value

TERMS: Registry[Term] = Registry("personae.terms", Term, (EmbeddingRegularisation, Proximal))

__all__ = ["TERMS", "EmbeddingRegularisation", "Proximal", "Term", "Value"]
