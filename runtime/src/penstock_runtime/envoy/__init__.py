"""Configuration of the Envoy that is a pool's gateway. Pure functions, for every program that starts one."""
