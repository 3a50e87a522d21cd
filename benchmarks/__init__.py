"""What the tool costs beside a hand-written `docker build`: see `python -m benchmarks --help`."""
