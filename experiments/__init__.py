"""The paper as commands: tasks, and the tables and figures made of them."""
