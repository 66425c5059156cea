"""One file per command: its options and its handler, which calls the library and prints the result.

Handlers import what they need when they run: importing torch takes seconds, and `debgcd --help` should be fast.
"""
