"""The attacks by name."""

from personae.core.registry import Registry
from personae.privacy.audit.attack import PrivacyAttack
from personae.privacy.audit.canaries import CanaryEstimate
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
