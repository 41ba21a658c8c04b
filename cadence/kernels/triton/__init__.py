"""The ops on a GPU, in Triton. `ops` is the door; `peers` is what ranks exchange through memory of GPUs. Kernels lie in
the folders here, none of which imports this one. `kernels/select.py` and `distributed` import it."""
