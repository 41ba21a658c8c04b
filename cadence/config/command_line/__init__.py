"""How options are written on a command line and in `--help`: words (`argv`), their values (`values`), groups and topics
of help. Imports core and `peers`; `config`, the shell and `cadence/vllm` import it."""
