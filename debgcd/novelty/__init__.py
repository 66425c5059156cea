"""Known or new? Detectors behind one interface.

- `base`: the interface, and the threshold above which an image looks new
- `one_vs_all`: the paper's detector, trained by L_sdl, and one by distance to the means of the known classes
- `vote`: the nearest training images vote
- `suspicious_labels`: labels that look wrong to their neighbours
"""
