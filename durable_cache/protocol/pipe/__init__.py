"""What a reliable pipe decides, as a pure engine (ADR 0161)."""
