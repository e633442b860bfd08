"""The page on the paper's claims: what it says, what is seen here, a verdict."""

from experiments.claims.page import claims_page

__all__ = ["claims_page"]
