"""What was found, to be looked at: how far to trust each category, the page, the paper's figures."""
