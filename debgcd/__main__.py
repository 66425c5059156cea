"""`python -m debgcd`, and so `torchrun --nproc-per-node N -m debgcd`."""

import sys

from debgcd.cli import main

if __name__ == "__main__":
    sys.exit(main())
