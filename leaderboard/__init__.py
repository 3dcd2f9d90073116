"""The reading side: selection, tables and figures as pure functions of a frame. Never trains."""
