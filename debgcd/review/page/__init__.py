"""Select, name, merge, split, undo: a run corrected by hand, in a page that only this machine can open."""
