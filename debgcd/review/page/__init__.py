"""Select, name, merge, split, undo: a run corrected by hand, in a page that only this machine can open.

- `server`: FastAPI behind a guard: token, Host, Origin, size of bodies
- `session`: acts in, changes out
- `pictures`: thumbnails from worker processes
- `similar`: what looks alike
- `maps`: where in an image the network looks
- `suggested`: splits and merges that the features suggest
"""
