"""Figures of results, as in the papers: attainment over rate, and the TTFT–TPOT plane."""
