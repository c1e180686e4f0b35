"""The grader. Students never receive this folder; see docs/instructors.md."""
