"""What authors of backends and users run against their own: suite, simulator, fault tools."""
