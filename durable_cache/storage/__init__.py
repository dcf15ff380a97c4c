"""The seam: the storage contract, its reference, the journal and the plug-ins."""
