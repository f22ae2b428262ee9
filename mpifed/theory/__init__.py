"""Results of the papers: step sizes, rates and budgets as functions of measured constants."""
