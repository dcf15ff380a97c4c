"""What each verb of the command line does; one module a family of verbs."""
