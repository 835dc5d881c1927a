"""Pre-training: central training of a first model on faces that the server may have."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from personae.algorithms.central import Central
from personae.core.algorithm import Server
from personae.core.samples import Samples
from personae.errors import ConfigError
from personae.parts.heads import HeadInit


@dataclass(frozen=True, kw_only=True)
class Pretrain(Central):
    """Supervised training on public faces, and on no others."""

    name: ClassVar[str] = "pretrain"
    pools_faces: ClassVar[bool] = False

    head_init: HeadInit = "random"  # how class embeddings begin: as the mean features of each person, or at random
    use_public_faces: bool = True  # can be nothing but true

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.use_public_faces:
            raise ValueError("pretrain has public faces alone; use_public_faces cannot be false")

    @property
    def needs_labels_of(self) -> Literal["all", "source", "none"]:
        return "none"

    def faces(self, server: Server) -> Samples:
        if server.public_faces is None:
            raise ConfigError("pretrain needs public faces; add [data.public] to the experiment")
        return server.public_faces
