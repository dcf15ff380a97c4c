"""What the promise looks like in one terminal: real processes, a cut link, a killed cache."""
