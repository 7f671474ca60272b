"""Configuration of an Envoy that is a pool's gateway, for everything that starts one. Pure."""
