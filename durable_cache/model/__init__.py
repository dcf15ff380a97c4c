"""Pure values: samples, sequences, ranges, key expressions, selections. No I/O, no clock."""
