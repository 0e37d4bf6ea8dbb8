"""Host memory: settings, regions that sleep and wake, what is kept or copied there."""
