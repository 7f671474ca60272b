"""Machine-code compilation of inner loops: numba decorators and the compile cache of images."""
