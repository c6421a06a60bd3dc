"""Loss terms, the head that feeds them and the criterion that weighs them."""
