"""What the papers prove: step sizes, rates and budgets as functions of measured constants."""
