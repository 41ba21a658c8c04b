"""The rows on the device: tokens and lengths (`requests`), block tables (`blocks`). Imports kernels and device;
`runner` and its features import it."""
