"""What backends may share: how pages are cut, what retention lets go, which numbers are skipped."""
