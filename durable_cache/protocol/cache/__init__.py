"""What one cache decides: which samples are new, what is missing, what to say when. Pure."""
