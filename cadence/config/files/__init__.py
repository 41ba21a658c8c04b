"""What a model's files say of it, field by field, and in bounded time and memory: the files are untrusted. Imports
core; `config`, `text`, `lora` and the loaders of models import it."""
