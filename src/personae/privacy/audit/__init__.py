"""Attacks on what a run gives away, by name: one file each."""

from personae.core.registry import Registry
from personae.privacy.audit.attack import Evidence, Person, PrivacyAttack, Received, Unmeasurable
from personae.privacy.audit.canaries import CanaryEstimate
from personae.privacy.audit.finding import Audit, Finding, read_audit, write_audit
from personae.privacy.audit.hidden_rows import HiddenRows
from personae.privacy.audit.inversion import Inversion
from personae.privacy.audit.membership import Membership
from personae.privacy.audit.scores import Scores
from personae.privacy.audit.templates import Templates
from personae.privacy.audit.updates import Updates

PRIVACY_ATTACKS: Registry[PrivacyAttack] = Registry(
    "personae.privacy_attacks",
    PrivacyAttack,
    (Templates, Updates, HiddenRows, Membership, Inversion, Scores, CanaryEstimate),
)

__all__ = [
    "PRIVACY_ATTACKS",
    "Audit",
    "Evidence",
    "Finding",
    "Person",
    "PrivacyAttack",
    "Received",
    "Unmeasurable",
    "read_audit",
    "write_audit",
]
