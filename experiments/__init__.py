"""The paper's experiments as commands: tasks, tables and figures."""
