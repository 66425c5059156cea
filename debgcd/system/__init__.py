"""Basics: files, processes, the machine. Knows nothing about images.

- `files`: atomic writes of files and folders, locks, CSV, the only reader of JSON
- `store`: cache of large computed files: resumable, checked when opened
- `progress`: a progress bar on a terminal, plain lines elsewhere
- `text_table`: aligned tables for a terminal, and Markdown
- `machine`: cores, processor, versions, optional packages, the cache folder; what worker processes do first
- `distributed`: the processes of one job under torchrun
"""
