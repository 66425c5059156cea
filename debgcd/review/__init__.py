"""A reviewer's acts: `page` is the page to make them in.

- `state`: the acts and the state that is their replay
- `log`: decisions.jsonl on disk, and predictions as a reviewer left them
- `suggest_names`: what new categories look like, and words that fit them
- `page`: the page and its server
"""
