"""Pictures of what a run found, in the papers' two forms: attainment over rate, and the TTFT–TPOT plane."""
