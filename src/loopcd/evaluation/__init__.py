"""Tasks, graders, the resumable runner and paired statistics."""
