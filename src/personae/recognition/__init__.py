"""Models in use: files to deploy, their cards, galleries of known people, thresholds."""
