"""What all sections of an experiment file have in common."""

from pydantic import BaseModel, ConfigDict

SYNTHETIC = "synthetic"  # in the place of a path: faces that are rendered


class Section(BaseModel):
    """Keys that it does not know are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
