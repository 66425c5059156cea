"""Basics: files, processes, the machine. Knows nothing about images.

- `files`: atomic writes of files and folders, locks, CSV, the only reader of JSON
- `store`: cache of large computed files: resumable, checked when opened
- `progress`: a progress bar on a terminal, plain lines elsewhere
- `text_table`: aligned tables for a terminal, and Markdown
- `machine`: cores, processor, versions, the cache folder
- `optional`: packages that only some features need
- `workers`: worker processes leave signals to their parent and end with it
- `distributed`: the processes of one job under torchrun
"""
