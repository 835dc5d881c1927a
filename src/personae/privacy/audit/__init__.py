"""Attacks on what a run gives away: one file each."""

from typing import TYPE_CHECKING

from personae.deferred import deferred

if TYPE_CHECKING:
    from personae.privacy.audit.attack import Evidence, Person, PrivacyAttack, Received, Unmeasurable
    from personae.privacy.audit.attacks import PRIVACY_ATTACKS
    from personae.privacy.audit.finding import Audit, Finding, read_audit, write_audit

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

__getattr__ = deferred(
    __name__,
    attack="Evidence Person PrivacyAttack Received Unmeasurable",
    attacks="PRIVACY_ATTACKS",
    finding="Audit Finding read_audit write_audit",
)
