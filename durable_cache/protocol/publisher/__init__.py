"""The reliable publisher's decisions: numbers, incarnations, what is kept, what is acknowledged."""
