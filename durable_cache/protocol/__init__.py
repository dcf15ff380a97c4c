"""The pure protocol: engine, delivery, aligner, digest and wire; events in, outputs out."""
