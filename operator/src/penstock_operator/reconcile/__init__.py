"""Reconciling one pool: observe, derive the desired state, decide on actions, execute them, report."""
