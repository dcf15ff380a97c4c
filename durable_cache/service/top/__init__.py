"""What ``durable-cache top`` shows on a terminal; needs the extra ``durable-cache[top]``."""
