"""Procedural faces: pictures of people who do not exist, drawn from nothing but numbers."""

from personae.data.synthetic.capture import Capture
from personae.data.synthetic.celeba import ATTRIBUTES
from personae.data.synthetic.domains import CAPTURES, DOMAINS, PEOPLE, Domain
from personae.data.synthetic.people import People
from personae.data.synthetic.renderer import attributes, render

__all__ = ["ATTRIBUTES", "CAPTURES", "DOMAINS", "PEOPLE", "Capture", "Domain", "People", "attributes", "render"]
