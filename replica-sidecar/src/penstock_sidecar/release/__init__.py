"""Release control: when a request enters an engine that schedules by itself."""
