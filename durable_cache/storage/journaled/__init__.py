"""A backend with a journal in front, a stream index beside it, and what waits between them."""
