"""Access to the cluster: the API client, the Lease, the cache of watched objects, kinds and permissions."""
