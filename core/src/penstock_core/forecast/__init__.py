"""Forecasts that several policies and routers share: lengths, KV memory, decode load, snapshots."""
