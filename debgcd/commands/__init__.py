"""What each command does: call the rooms, print the result.

Each command imports what it needs when it runs: torch takes seconds, and `debgcd --help` should not wait for it.
"""
