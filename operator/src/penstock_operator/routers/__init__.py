"""What a pool's routers report: the client that asks them, and the page that they answer with."""
