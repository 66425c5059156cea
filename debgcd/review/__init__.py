"""A reviewer's acts: `page` is the page to make them in.

- `state`: the acts, and what each changes
- `replay`: the state that a log of acts leads to
- `log`: decisions.jsonl on disk, and predictions as a reviewer left them
- `suggest_names`: what new categories look like, and words that fit them
- `teach`: which images to label next; `next_images`: those of a run
- `page`: the page and its server
"""
