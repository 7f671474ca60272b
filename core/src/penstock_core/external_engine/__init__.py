"""When a request enters an engine that schedules by itself: release control for any OpenAI engine."""
