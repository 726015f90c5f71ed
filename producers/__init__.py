"""GPU side: trace reading, collectives and step budgets, batches, publishing."""
