"""The shell: configuration, service, metrics, admin space, HTTP and command line."""
