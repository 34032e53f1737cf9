"""An agreed metric: computed for each sample, by eager and by a package, and what is lost of it."""
