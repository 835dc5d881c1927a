"""Attacks on what a run gives away, by name: one file each."""

from personae.core.registry import Registry
from personae.privacy.audit.attack import Evidence, Person, PrivacyAttack, Received, Unmeasurable
from personae.privacy.audit.finding import Audit, Finding, read_audit, write_audit
from personae.privacy.audit.templates import Templates

PRIVACY_ATTACKS: Registry[PrivacyAttack] = Registry("personae.privacy_attacks", PrivacyAttack, (Templates,))

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
