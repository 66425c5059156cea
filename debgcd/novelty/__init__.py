"""Known or new? Detectors behind one interface.

- `base`: the interface, and the threshold above which an image looks new
- `one_vs_all`: the paper's detector, trained by L_sdl, and one by distance to the means of the known classes
- `vote`: a detector by a vote of the nearest training images
- `so_far`: three answers for later images: a known class, a category found before, or none of these
- `suspicious_labels`: labels that disagree with those of the nearest images
"""
