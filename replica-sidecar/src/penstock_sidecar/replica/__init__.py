"""One replica: its sessions, intake, admission, and the requests that it has accepted."""
