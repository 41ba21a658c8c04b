"""Under the C kernels: compiling and opening their library (`build`, `library`), the table of commands (`table`, read
from commands.h), threads, instruction sets, memory. Imports `device` and no other folder of kernels."""
