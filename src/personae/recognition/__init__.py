"""Models in use: files to deploy, their cards, galleries of known people, thresholds."""

from typing import TYPE_CHECKING

from personae.deferred import deferred

if TYPE_CHECKING:
    from personae.recognition.card import card_paths
    from personae.recognition.enrolment import prepare
    from personae.recognition.export import export_model
    from personae.recognition.faces import read_face, read_people, read_portraits
    from personae.recognition.gallery import Gallery
    from personae.recognition.recogniser import Recogniser, open_gallery
    from personae.recognition.threshold import Threshold, by_hand, save_evaluation, threshold_at

__all__ = [
    "Gallery",
    "Recogniser",
    "Threshold",
    "by_hand",
    "card_paths",
    "export_model",
    "open_gallery",
    "prepare",
    "read_face",
    "read_people",
    "read_portraits",
    "save_evaluation",
    "threshold_at",
]

__getattr__ = deferred(
    __name__,
    card="card_paths",
    enrolment="prepare",
    export="export_model",
    faces="read_face read_people read_portraits",
    gallery="Gallery",
    recogniser="Recogniser open_gallery",
    threshold="Threshold by_hand save_evaluation threshold_at",
)
