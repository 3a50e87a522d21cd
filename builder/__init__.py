"""overlay: put upstream pull requests onto a container image, and prove later what was done."""

__version__ = "0.1.0"
