"""What an operator does besides deploying: the only part of the library that talks to AWS."""
