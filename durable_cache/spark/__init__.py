"""Historical queries and jobs over the Delta backend, on Spark."""
