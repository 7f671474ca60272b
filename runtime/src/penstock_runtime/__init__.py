"""What every Penstock process does alike: logs, HTTP serving, clean stops, errors in OpenAI's shape."""
