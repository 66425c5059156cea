"""Backbones cut into trunk and tail, and the heads on top."""
