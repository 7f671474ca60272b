"""One replica: its sessions, intake, admission, and accepted requests."""
