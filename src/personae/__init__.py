"""Federated face recognition: train one model together, keep a personal one each, share no faces."""
