"""The lab: real SGLang source, a real Docker daemon, a registry and a forge, all on loopback.

Tests and `./demo` share it. Everything heavy is made once and kept in a cache folder
(`tests.lab.cache`), everything that runs is stopped by whoever started it.
"""
