"""Capacity on a real GPU: the same requests to vLLM as it is and to Penstock before it.

`__main__` goes from one way of serving to the next, as `asked` on the command line; `search` says which rate
to try, `load` makes a scenario's requests at it and sends them, `ways` starts what serves, `journal`
remembers trials, `page` writes what was found. `device` looks for the GPU, `cpu` replaces it
where only the program itself is tried.
"""
