"""A reader's own cache, as DDS has it: instances, their states, what is read and what is taken."""
