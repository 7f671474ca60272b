"""Release control: when a request is sent to an OpenAI-compatible engine that schedules by itself."""
