// Keeps a library with no other source legal.
