"""What the command line offers, a file a topic; `cli.py` puts them together."""
