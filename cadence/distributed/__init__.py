"""What ranks have in common: who stands where, and the memory and exchanges in which they compute together. Executors
import it."""
