"""The paper as commands: jobs, and the tables and figures made of them."""
