"""The subcommands of `penstock`, one file each: options, the call, and the output."""
