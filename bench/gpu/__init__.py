"""Capacity on a real GPU: the same requests to unmodified vLLM and to Penstock in front of vLLM.

`__main__` runs one way of serving after the other with the command line's `options`; `search` chooses the
next rate, `load` generates a scenario's requests and sends them, `ways` starts the servers, `journal` stores
trials, `page` writes the results. `device` finds the GPU, `cpu` replaces it to test the program itself.
"""
